"""Folders of images: an index of captions and features that is kept up to date, search in it, and captions as XMP."""

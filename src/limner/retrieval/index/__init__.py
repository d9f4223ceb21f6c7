"""Indexes of the images of a collection, so that a search scores only a few images."""

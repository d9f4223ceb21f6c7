"""Formats on disk, checked when they are read: tensors, Lance tables, JSON."""

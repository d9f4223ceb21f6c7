"""Indexes of the images of a collection, by which a search scores few of them."""

"""Plots as matplotlib figures: curves, alignments, attention over images; their markup and files."""

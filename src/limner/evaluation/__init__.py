"""Evaluation: validation during training, full evaluation of a split, and comparison of systems."""

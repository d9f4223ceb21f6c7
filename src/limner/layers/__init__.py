"""Layers shared by several models, in plain PyTorch."""

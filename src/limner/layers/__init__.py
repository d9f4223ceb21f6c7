"""Layers shared by several models, in plain PyTorch; optimised forms are in `fused`."""

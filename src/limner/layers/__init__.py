"""Layers that several models share, in plain PyTorch; optimised forms of them are in `fused`."""

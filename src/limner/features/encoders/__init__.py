"""Backbones: frozen encoders that compute features."""

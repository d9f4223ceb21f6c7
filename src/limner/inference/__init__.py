"""Inference: captions, translations, scores and retrieval results from trained models."""

"""Decoding: beam search, sampling, and the probability of given sentences."""

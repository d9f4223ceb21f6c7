"""Image-text retrieval: scores of all pairs, their normalisation, and shortlists."""

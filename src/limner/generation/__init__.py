"""Generation: the way from a request to its sentences, for every caller and every kind of model."""

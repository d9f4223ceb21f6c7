"""Parts that several models share; they take plain numbers, never settings."""

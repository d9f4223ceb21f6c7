"""Models in the format of transformers as models of Limner: captioners, translators, and joint spaces."""

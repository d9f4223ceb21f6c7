"""Text processing: Moses tokenisation, word and subword vocabularies, compound splitting, word vectors."""

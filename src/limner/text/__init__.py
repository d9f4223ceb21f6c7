"""Text: Moses tokenisation by language, vocabularies of words and of subwords."""

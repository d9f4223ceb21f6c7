"""Phrase-based statistical machine translation: Koehn et al. (2003, 2007), the baseline of Calixto et al. (2016, 2017).

The program is written from the papers; `limner.models.phrase_based` makes it a model like all others. Sentences are
lists of token ids of the vocabularies. Arrays are NumPy's, and the inner loops are compiled by Numba.
"""

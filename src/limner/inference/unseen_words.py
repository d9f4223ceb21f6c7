"""Words that a captioner has never seen: entries of its vocabulary that copy the nearest known noun.

Anderson et al. (2017), section 3.3, give unseen words embeddings and output weights from pre-trained word vectors. The
vocabularies here are trained from captions alone, so an unseen noun copies the input embedding and the output row of
the known noun of the same kind whose classes look most alike: the cosine between the classifier's weights of their
classes. Its logit is lower by `LOG_ODDS`, so that it is generated only where a constraint requires it and takes no
probability from the known words. The stored model does not change.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import numpy as np

from limner.features.encoders.efficientnet import ClassProbabilities
from limner.models.show_attend_tell import ShowAttendTell
from limner.runs.trained_model import TrainedModel
from limner.text.class_nouns import ClassNoun
from limner.text.tokenizer import Tokenizer
from limner.text.vocab import SPECIAL_TOKENS

LOG_ODDS = -20.0
"""Difference of the logit of an unseen word from that of the known word that it copies."""


def with_unseen_nouns(
    trained: TrainedModel, nouns: Sequence[ClassNoun], classifier: ClassProbabilities
) -> TrainedModel:
    """Return a captioner that can generate the usual words of nouns of which it knows no word.

    Args:
        trained: captioner, which does not change.
        nouns: nouns of the language of the captions.
        classifier: classifier whose weights say which nouns look alike.
    """
    model = trained.model
    copied = nearest_known(trained.tokenizer, nouns, classifier)
    if not copied or not isinstance(model, ShowAttendTell):
        return trained
    extended = copy.deepcopy(model)
    extended.extend_vocabulary([trained.tokenizer.encode(known)[0] for known in copied.values()], LOG_ODDS)
    return trained._replace(model=extended, tokenizer=trained.tokenizer.extended(list(copied)))


def nearest_known(
    tokenizer: Tokenizer, nouns: Sequence[ClassNoun], classifier: ClassProbabilities
) -> Mapping[str, str]:
    """Return a known word for the usual word of each noun without a known word, where its kind has one."""
    vectors = np.stack([classifier.weight[list(noun.classes)].mean(0) for noun in nouns])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    known = [next((word for word in noun.words if is_known_word(tokenizer, word)), None) for noun in nouns]
    named = [any(known_words(tokenizer, [word]) for word in noun.words) for noun in nouns]
    copied: dict[str, str] = {}
    for noun, vector, can_be_named in zip(nouns, vectors, named, strict=True):
        if can_be_named or not tokenizer.can_extend(noun.word):
            continue
        alike = [
            (float(vector @ other), word)
            for other, word, candidate in zip(vectors, known, nouns, strict=True)
            if word is not None and candidate.kind == noun.kind
        ]
        if alike:
            copied.setdefault(noun.word, max(alike)[1])
    return copied


def known_words(tokenizer: Tokenizer, words: Sequence[str]) -> list[str]:
    """Return the words or phrases whose words are all in a vocabulary."""
    return [word for word in words if SPECIAL_TOKENS.unk not in tokenizer.encode(word)]


def is_known_word(tokenizer: Tokenizer, word: str) -> bool:
    """Whether a word is one token of a vocabulary."""
    tokens = tokenizer.encode(word)
    return len(tokens) == 1 and tokens[0] != SPECIAL_TOKENS.unk

"""The rules of captions: concepts choose among the hypotheses of a beam, or put a plain sentence in their place."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from limner.decoding.next_tokens import Floats
from limner.decoding.selection import normalised_log_prob
from limner.decoding.sentence import Sentence
from limner.errors import SettingsError
from limner.generation.request import Request, RuleOptions
from limner.runs.concepts import Concepts, Tag, WordColumns, largest_of_words, pooled_vector, trigram_bits
from limner.text.tokenizer import Tokenizer

ARTICLE = re.compile(r"\ba (?=(?!uni(?![dmn])|use|ute|eu|one|uk)[aeiou]|hour)")
"""Article before a word that is pronounced with a vowel."""
REPEATED_WORD = re.compile(r"(?<!\S)(?!(?:der|die|das|den|dem) )(\S+) \1(?!\S)", re.IGNORECASE)
"""A word that follows itself, 'a small small dog', but not a German relative pronoun before an equal article; none in
Chinese, which has no spaces."""
LONGEST_NGRAM = 4
"""Number of words of the longest n-grams in the comparison of hypotheses."""


class CaptionRules:
    """Rules of the captions of a model; without concepts of its own, a model has tags only."""

    def __init__(self, concepts: Concepts | None, tagger: Concepts | None) -> None:
        """Create the rules.

        Args:
            concepts: concepts of the model, which choose its captions; None where the search alone decides.
            tagger: concepts that name tags; None without tags.
        """
        self.concepts, self.tagger = concepts, tagger
        self._tokens: tuple[Tokenizer, WordColumns] | None = None

    def check(self, options: RuleOptions) -> None:
        """Check options before an image is read; SettingsError for tags or a confidence that the model has not."""
        if options.with_tags and self.tagger is None:
            raise SettingsError(
                "tags need the features of the last layer of the built-in backbone (efficientnet-lite2); use a model "
                "trained on these features, or leave out the tags (--tags)"
            )
        if options.min_confidence is not None and self.concepts is None:
            raise SettingsError(
                f"min_confidence {options.min_confidence}: this model has no concepts, and so no confidence; leave it "
                "out (--min-confidence), or use the built-in captioner"
            )

    def prepare(self, request: Request) -> None:
        """Compute the probabilities of the concepts in the image of a request."""
        is_read = self.concepts is not None or request.rule_options.with_tags
        if self.tagger is not None and request.features is not None and is_read:
            (request.evidence,) = self.tagger.of_vectors(pooled_vector(request.features)[None])

    def chooses(self, request: Request) -> bool:
        """Whether the concepts choose among the hypotheses of a beam."""
        return self.concepts is not None and request.rule_options.concepts and request.decoding.sample is None

    def bonus(self, request: Request) -> Floats | None:
        """Return the evidence for the word of each token in a search without prefix and samples, (V,)."""
        concepts = self.concepts
        if concepts is None or request.prefix or not self.chooses(request):
            return None
        tokenizer = request.generator.tokenizer
        if self._tokens is None or self._tokens[0] is not tokenizer:
            self._tokens = tokenizer, concepts.columns_of(tokenizer.spellings)
        values = largest_of_words(self._tokens[1], concepts.evidence_of_each(request.evidence))
        return concepts.calibration.search_weight * values

    def finish(self, request: Request, hypotheses: Sequence[Sentence]) -> list[Sentence]:
        """Return the `n_best` captions of a request among the hypotheses of its search, best first.

        Hypotheses of a beam are ordered by their score, see `Sentence.score`; sure hypotheses, whose things all have at
        least the probability `min_confidence`, come first, and their consensus is computed among themselves. Plain
        sentences take the first places where no hypothesis is sure, and where the best hypothesis overlooks a more
        probable thing. Samples, and captions with a prefix or prescribed words that no plain sentence has, are withheld
        (`is_sure`) only where nothing is probable, or where the request has a threshold.
        """
        concepts, count = self.concepts, request.decoding.n_best
        tags = () if self.tagger is None else self.tagger.tags(request.evidence)
        captions = [sentence._replace(tags=tags) for sentence in hypotheses]
        if concepts is None:
            return captions[:count]
        least = request.rule_options.min_confidence
        threshold = concepts.calibration.min_confidence if least is None else least
        evidence = concepts.evidence_of_each(request.evidence) if self.chooses(request) else None
        captions = [self._with_confidence(request, caption, threshold, evidence) for caption in captions]
        if evidence is not None:
            captions = [self._with_articles(request, caption) for caption in captions]
            by_text = {caption.text: caption for caption in sorted(captions, key=lambda caption: caption.score)}
            sure, doubtful = (
                self._with_consensus([caption for caption in by_text.values() if caption.is_sure is kind])
                for kind in (True, False)
            )
            captions = [*sure, *doubtful]
            first = captions[0]
            if first.is_sure:
                sentences = concepts.overlooked(first.text, request.evidence, first.confidence or 0.0)
            else:
                sentences = concepts.plain_sentences(request.evidence)
            if sentences and (plain := self._plain_captions(request, sentences, tags)):
                ranked = (plain[0], *(caption for caption in captions if caption.is_sure), *plain[1:])
                return [*{caption.text: caption for caption in ranked}.values()][:count]
            if not request.prefix and request.constraint is None:
                return captions[: count if captions[0].is_sure else 1]
        if least is None and concepts.most_probable(request.evidence) >= threshold:
            captions = [caption._replace(is_sure=True) for caption in captions]
        return captions[:count]

    def _with_consensus(self, captions: Sequence[Sentence]) -> list[Sentence]:
        """Return captions with their consensus added to their scores, best first."""
        assert self.concepts is not None, "the captions of a model without concepts are as they were found"
        weight, texts = self.concepts.calibration.consensus, [self.concepts.split(caption.text) for caption in captions]
        gains = weight * consensus(texts, [caption.score for caption in captions])
        scored = [
            caption._replace(score=caption.score + float(gain)) for caption, gain in zip(captions, gains, strict=True)
        ]
        return sorted(scored, key=lambda caption: -caption.score)

    def _with_articles(self, request: Request, caption: Sentence) -> Sentence:
        """Return an English caption with 'an' before vowels, where the evidence for a noun has led to 'a'."""
        assert self.concepts is not None, "the captions of a model without concepts are as they were found"
        text, tokenizer = caption.text, request.generator.tokenizer
        if self.concepts.file.lang == "en" and not request.prefix and request.constraint is None:
            text = ARTICLE.sub("an ", text)
        if text == caption.text:
            return caption
        words, an = [tokenizer.spellings[token] for token in (*caption.tokens, 0)], tokenizer.token_id("an")
        pairs = zip(caption.tokens, words, words[1:], strict=False)
        tokens = tuple(an if ARTICLE.match(f"{word} {following}") else token for token, word, following in pairs)
        return caption._replace(tokens=tokens, totals=(), text=text)

    def _plain_captions(
        self, request: Request, sentences: Sequence[tuple[str, float]], tags: tuple[Tag, ...]
    ) -> list[Sentence]:
        """Return plain sentences with probabilities as captions, if they have the prefix and the words of a request."""
        tokenizer, captions = request.generator.tokenizer, list[Sentence]()
        for text, probability in sentences:
            tokens, prefix = tokenizer.encode(text), list(request.prefix)
            included = request.constraint is None or request.constraint.accepts(tokens)
            if included and tokens[: len(prefix)] == prefix and not request.copied:
                captions.append(Sentence((), 0.0, 0.0, text=text, confidence=probability, tags=tags))
        return captions

    def _with_confidence(
        self, request: Request, caption: Sentence, threshold: float, evidence: Floats | None
    ) -> Sentence:
        """Return a caption with its confidence; with evidence of the concepts (C,), also with its score.

        The score is the normalised log-probability and the evidence, less a loss for each trigram not in the filter.
        """
        concepts, probabilities = self.concepts, request.evidence
        assert concepts is not None, "the captions of a model without concepts have no confidence"
        mentions, score = concepts.mentions(caption.text), caption.score
        confidence = concepts.confidence(mentions, probabilities)
        confidence *= float(probabilities[concepts.file.photograph])
        if evidence is not None:
            score = normalised_log_prob(caption.log_prob, len(caption.tokens) + 1, request.exponent)
            score += concepts.evidence(mentions, evidence)
            if concepts.trigrams is not None:
                places, bits = trigram_bits(caption.tokens, len(concepts.trigrams))
                unseen = ((concepts.trigrams[places] & bits) == 0).any(1)
                score -= concepts.calibration.unseen * float(unseen[: None if caption.ended else -1].sum())
        if REPEATED_WORD.search(caption.text):
            confidence = 0.0
        return caption._replace(score=score, confidence=confidence, is_sure=confidence >= threshold)


def consensus(texts: Sequence[Sequence[str]], scores: Sequence[float]) -> Floats:
    """Compute the expected similarity of each of N hypotheses to all of them, from 0 to 1, (N,).

    This is the negative Bayes risk of Kumar and Byrne (2004) under the softmax of the scores. The similarity is the
    mean over n = 1, ..., 4 of the Dice coefficient 2 |A and B| / (|A| + |B|) of the sets of n-grams of two hypotheses.

    Args:
        texts: words of the hypotheses.
        scores: logarithms of the weights of the hypotheses.
    """
    weights = np.exp(np.asarray(scores, np.float32) - max(scores, default=0.0))
    similarity = np.zeros((len(texts), len(texts)), np.float32)
    for order in range(1, LONGEST_NGRAM + 1):
        ngrams = [set(zip(*(words[start:] for start in range(order)), strict=False)) for words in texts]
        columns = {ngram: column for column, ngram in enumerate(set().union(*ngrams))}
        present = np.zeros((len(texts), len(columns)), np.float32)
        for row, members in enumerate(ngrams):
            present[row, [columns[ngram] for ngram in members]] = 1
        sizes = present.sum(1)
        similarity += 2 * (present @ present.T) / np.maximum(sizes[:, None] + sizes, 1) / LONGEST_NGRAM
    return np.asarray(similarity @ weights / max(weights.sum(), 1e-9), np.float32)

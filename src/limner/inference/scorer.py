"""Probability of sentences about images, and distances of words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Self

import torch

from limner.data.collection import Collection
from limner.data.dataset import Examples, FeatureSource
from limner.data.examples import Item, ItemSentence
from limner.decoding.scoring import SentenceScore, score_examples, token_log_probs
from limner.errors import SettingsError
from limner.features.encoders.base import AnyBackbone, Backbone
from limner.generation.sentences import images_of_sentences, warn_of_unknown_words
from limner.inference.base import load_models, require_captioning
from limner.inference.features import BackboneFeatures, new_item, open_features, require_images
from limner.layers.functional import require_numbers
from limner.media.image import ImageInputs
from limner.metrics import perplexity
from limner.models.protocols import WordEmbeddingModel
from limner.progress import Progress
from limner.retrieval.marginal import log_ratio_signature, marginal_items
from limner.runs.trained_model import TrainedModel
from limner.text.queries import require_words
from limner.text.vocab import SPECIAL_TOKENS

SCORING_BATCH_SIZE = 32


class LogRatios(NamedTuple):
    """Reference-free scores of sentences."""

    values: list[float]
    """log P(w|I) - log P(w) of each sentence, in natural logarithms."""
    tokens: list[list[tuple[str, float]]]
    """Tokens of each sentence, with `</s>`, and their log P(w_t | w_1 .. w_t-1, I) - log P(w_t | w_1 .. w_t-1), whose
    sum is the value of the sentence: the pointwise mutual information of each token and the image."""
    signature: str
    """Digest of the model and images of the marginal P(w)."""


class Scorer:
    """A captioning model that computes the probability of given sentences."""

    def __init__(self, model: TrainedModel, backbone: Backbone | None = None) -> None:
        """Create a scorer of a model.

        Args:
            model: captioning model.
            backbone: computes the features of new images; None for a model without features.

        Raises:
            RunError: the model is a translation model.
        """
        require_captioning(model)
        self.model, self.backbone = model, backbone

    @classmethod
    def load(cls, run: Path | str, *, backbone: AnyBackbone = None, device: str = "cpu") -> Self:
        """Load a trained model and its backbone; see `Captioner.load`."""
        (model,), encoder = load_models([run], backbone, device)
        return cls(model, encoder)

    def score(
        self, images: ImageInputs, sentences: Sequence[str], *, on_progress: Progress | None = None
    ) -> list[SentenceScore]:
        """Compute the probability of each sentence given the image at the same position, or the only image.

        Args:
            images: N paths, encoded bytes, PIL images or arrays (H, W, 3); or one of them.
            sentences: N sentences.
            on_progress: called with the number of sentences done and their total.

        Raises:
            SettingsError: the numbers of images and sentences differ, or a sentence has no words.
            MediaError: an image cannot be read.
        """
        inputs = images_of_sentences(sentences, images)
        require_words(self.model.tokenizer, sentences)
        require_images(self.model, inputs)
        warn_of_unknown_words(self.model.tokenizer, sentences, "the scores of such sentences are not comparable")
        lang = self.model.recipe.data.lang
        items = [
            replace(new_item(image), sentences=(ItemSentence(lang, text),))
            for image, text in zip(inputs, sentences, strict=True)
        ]
        features = BackboneFeatures(self.backbone, inputs) if self.backbone is not None else None
        examples = Examples(items, self.model.target, features)
        scores = score_examples(self.model.model, examples, batch_size=SCORING_BATCH_SIZE, on_progress=on_progress)
        return [
            SentenceScore(log_prob, count, perplexity(log_prob, count).value, target.count(SPECIAL_TOKENS.unk))
            for log_prob, count, target in zip(
                scores.log_probs.tolist(), scores.tokens.tolist(), examples.targets, strict=True
            )
        ]

    def log_ratios(
        self,
        images: ImageInputs,
        sentences: Sequence[str],
        collection: Collection,
        *,
        on_progress: Progress | None = None,
    ) -> LogRatios:
        """Compute log P(w|I) - log P(w) of sentences and of each token, with P(w) over training images I_k.

        The probability of a token without the image is P(w_1 .. w_t) / P(w_1 .. w_t-1), where P(w_1 .. w_t) is the mean
        of P(w_1 .. w_t | I_k).

        Args:
            images: N images, or the only image, as for `score`.
            sentences: N sentences.
            collection: training images and their features.
            on_progress: called with the number of pairs of a sentence and a training image done, and their total.

        Raises:
            CollectionError: the training split of the collection has no image with features.
            SettingsError: the model uses no stored image features; and as `score`.
            MediaError: an image cannot be read.
        """
        stored, inputs = open_features(self.model, collection), images_of_sentences(sentences, images)
        if stored is None or self.backbone is None:
            raise SettingsError(
                "expected a model with stored image features, found one without; leave out --collection"
            )
        require_words(self.model.tokenizer, sentences)
        require_images(self.model, inputs)
        training, computed = marginal_items(self.model, collection, stored), BackboneFeatures(self.backbone, inputs)
        spellings, tokens, count = self.model.tokenizer.spellings, [], len(sentences)
        for number, (image, text) in enumerate(zip(inputs, sentences, strict=True)):
            given_image = self._examples([new_item(image)], text, computed)
            log_probs = token_log_probs(self.model.model, self._examples(training, text, stored))  # (K, T)
            marginal = log_probs.double().cumsum(1).logsumexp(0) - math.log(len(training))
            ratios = token_log_probs(self.model.model, given_image)[0] - marginal.diff(prepend=torch.zeros(1))
            names = [spellings[token] for token in (*given_image.targets[0], SPECIAL_TOKENS.eos)]
            tokens.append([*zip(names, ratios.tolist(), strict=True)])
            if on_progress is not None:
                on_progress((number + 1) * len(training), count * len(training))
        signature = log_ratio_signature(self.model, collection, len(training), "fp32")
        return LogRatios([sum(ratio for _, ratio in sentence) for sentence in tokens], tokens, signature)

    def _examples(self, items: Sequence[Item], sentence: str, features: FeatureSource) -> Examples:
        sentences = (ItemSentence(self.model.recipe.data.lang, sentence),)
        return Examples([replace(item, sentences=sentences) for item in items], self.model.target, features)


def nearest_words(model: TrainedModel, word: str, count: int = 10) -> list[tuple[str, float]]:
    """Return the words with the nearest vectors and their Euclidean distances, nearest first.

    Args:
        model: trained model with word vectors.
        word: word of its vocabulary.
        count: number of neighbours.

    Raises:
        SettingsError: the model has no word vectors, or the word is not in its vocabulary.
        RunError: a distance is NaN.
    """
    network, entries = model.model, model.tokenizer.entries
    if not isinstance(network, WordEmbeddingModel):
        raise SettingsError(
            f"model '{model.recipe.model.name}' has no word vectors; name a run of a model that has them, "
            "such as 'mrnn', 'lbl' or 'show_and_tell'"
        )
    normalised = model.tokenizer.words(word)  # lowercased where the vocabulary is
    if len(normalised) == 1:
        word = normalised[0]
    if word not in entries:
        raise SettingsError(
            f"'{word}' is not among the {len(entries)} words of the vocabulary: it occurs in the training sentences "
            "too seldom or not at all; use another word"
        )
    with torch.inference_mode():
        vectors = network.word_vectors().double()  # (V, D); squares of float32 do not overflow
        row = entries.index(word)
        distances = torch.linalg.vector_norm(vectors - vectors[row], dim=1)
        require_numbers(distances, "word vectors")
        distances[[*SPECIAL_TOKENS, row]] = torch.inf
    nearest = distances.topk(min(count, len(entries) - len(SPECIAL_TOKENS) - 1), largest=False)
    return [(entries[k], d) for d, k in zip(nearest.values.tolist(), nearest.indices.tolist(), strict=True)]

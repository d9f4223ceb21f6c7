"""Captions that name what the classifier of the built-in backbone is sure of: Anderson et al. (2017), section 3.

Captions are decoded without constraints first. Those that do not name the most probable tag of their image, or one of
its synonyms, are decoded once more by constrained beam search, as long as the tag is probable enough. The new caption
is taken unless naming the tag costs too much of the log-probability; a certain tag may cost anything. An animal or
another thing that is usually a subject may start the caption instead, where this costs little more. Before all this,
captions with a word that the classifier denies are decoded again without it, and those that repeat a noun, or any word
at once, without the repetition. Thresholds are those of the run's calibration.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from limner.data.dataset import GenerationInput
from limner.data.examples import StoredFeatures
from limner.decoding.automaton import Bans
from limner.decoding.search import search
from limner.decoding.sentence import Sentence
from limner.decoding.settings import DecodingSettings
from limner.decoding.torch_models import TorchModels, select
from limner.generation.engine import CONSTRAINED_BEAMS
from limner.inference.must_include import SEPARATOR, compile_words
from limner.inference.tags import SUBJECT_KINDS, Tag
from limner.inference.unseen_words import LOG_ODDS, is_known_word, known_words
from limner.models.protocols import Memory
from limner.runs.calibration import TagCalibration
from limner.runs.trained_model import TrainedModel
from limner.text.tokenizer import Tokenizer

ARTICLES = {"en": ("a", "an"), "de": ("ein", "eine")}
"""Articles before a subject by language, of which the most probable is taken; other languages have no such captions."""


class EncodedImages(NamedTuple):
    """Images to caption that are encoded once, for several searches and for the evidence about their captions."""

    inputs: list[GenerationInput]
    features: list[StoredFeatures | None]
    memories: list[Memory]
    """Memory of each model, a row for each input."""
    device: torch.device

    def take(self, rows: Sequence[int]) -> EncodedImages:
        """Return some of the images; one may be taken several times."""
        return EncodedImages(
            [self.inputs[row] for row in rows],
            [self.features[row] for row in rows],
            select(self.memories, torch.tensor(rows, device=self.device, dtype=torch.long)),
            self.device,
        )


def generate_captions(
    models: Sequence[TrainedModel],
    images: EncodedImages,
    settings: DecodingSettings,
    prefixes: Sequence[str] | None = None,
) -> list[list[Sentence]]:
    """Decode captions of encoded images together, fewer at a time where words must be included.

    Args:
        models: the models that have encoded the images.
        images: the images.
        settings: decoding settings.
        prefixes: for each image the words that its caption starts with.

    Returns:
        The `n_best` hypotheses of each image, best first.

    Raises:
        SettingsError: no sentence of at most `max_length` tokens includes the words that it must.
    """
    tokenizer = models[0].tokenizer
    starts = None if prefixes is None else [tokenizer.encode(text) for text in prefixes]
    machines = {words: compile_words(tokenizer, *words) for words in {one.constraints for one in images.inputs}}
    count = len(images.inputs)
    beams = max((machine.size for machine in machines.values()), default=1)  # a beam for each state
    size = max(1, max(CONSTRAINED_BEAMS, 2 * count) // beams)
    ensemble = TorchModels([one.model for one in models], settings.precision, images.device)
    found: list[list[Sentence]] = []
    for start in range(0, count, size):
        rows = range(start, min(start + size, count))
        part = images if len(rows) == count else images.take(rows)
        found += search(
            ensemble,
            part.memories,
            [one.item.id for one in part.inputs],
            settings,
            None if starts is None else [starts[row] for row in rows],
            [machines[one.constraints] for one in part.inputs],
        )
    return found


def without_denied_words(
    models: Sequence[TrainedModel],
    images: EncodedImages,
    settings: DecodingSettings,
    hypotheses: Sequence[list[Sentence]],
    denied: Sequence[frozenset[str]],
    at_most_once: Sequence[str] | None = None,
) -> tuple[EncodedImages, list[list[Sentence]]]:
    """Decode captions again that have denied words, or words too often.

    Args:
        models: one model, or several as an ensemble.
        images: images, without words that the captions must include.
        settings: decoding settings without sampling.
        hypotheses: hypotheses of each image without constraints, best first.
        denied: words that the caption of each image must not have.
        at_most_once: words that captions have once at most; see `GenerationInput.at_most_once`.

    Returns:
        The images with these constraints, and the hypotheses.
    """
    tokenizer = models[0].tokenizer
    known = {word for word in frozenset().union(*denied) if is_known_word(tokenizer, word)}
    single = None if at_most_once is None else tuple(at_most_once)
    inputs = [
        one._replace(excluded=tuple(sorted(words & known)), at_most_once=single)
        for one, words in zip(images.inputs, denied, strict=True)
    ]
    images = images._replace(inputs=inputs)
    machines = {one.constraints: compile_words(tokenizer, *one.constraints) for one in inputs}
    rows = [
        row
        for row, (one, n_best) in enumerate(zip(inputs, hypotheses, strict=True))
        if not machines[one.constraints].accepts(n_best[0].tokens)
    ]
    result = list(hypotheses)
    decoded = generate_captions(models, images.take(rows), settings) if rows else []
    for row, n_best in zip(rows, decoded, strict=True):
        result[row] = n_best
    return images, result


def name_tags(
    models: Sequence[TrainedModel],
    images: EncodedImages,
    settings: DecodingSettings,
    hypotheses: Sequence[list[Sentence]],
    tags: Sequence[tuple[Tag, ...]],
    calibration: TagCalibration,
) -> list[list[Sentence]]:
    """Return the hypotheses of each image, those that miss a tag replaced.

    Args:
        models: one model, or several as an ensemble.
        images: images, without words that the captions must include.
        settings: decoding settings without sampling.
        hypotheses: hypotheses of each image without constraints, best first.
        tags: tags of each image, best first.
        calibration: tags that become part of the captions.
    """
    result = list(hypotheses)
    tokenizer = models[0].tokenizer
    bans = {one.constraints: compile_words(tokenizer, *one.constraints).bans for one in images.inputs}
    words = {
        row: required
        for row, (one, n_best, found) in enumerate(zip(images.inputs, hypotheses, tags, strict=True))
        if (
            required := required_words(
                tokenizer, n_best[0].tokens, found, calibration, settings.max_length, bans[one.constraints]
            )
        )
    }
    if not words:
        return result
    images = images.take(list(words))
    constrained = [_with_required(tokenizer, *pair) for pair in zip(images.inputs, words.values(), strict=True)]
    decoded = generate_captions(models, images._replace(inputs=constrained), settings)
    subjects = start_with_tags(models, images, settings, [tags[row][0] for row in words])
    for row, n_best, subject in zip(words, decoded, subjects, strict=True):
        named = n_best
        if subject is not None and calibration.subject_loss is not None:
            lost = mean_log_prob(models[0], n_best[0]) - mean_log_prob(models[0], subject[0])
            named = subject if lost <= calibration.subject_loss else n_best
        result[row] = choose_named(models[0], result[row], named, tags[row][0], calibration)
    return result


def _with_required(tokenizer: Tokenizer, one: GenerationInput, required: str) -> GenerationInput:
    """Require words; the words of phrases may be repeated, so that hypotheses that have one can continue."""
    alternatives = map(tokenizer.encode, required.split(SEPARATOR))
    parts = {token for tokens in alternatives if len(tokens) > 1 for token in tokens}
    if parts and one.at_most_once is not None:
        words = tuple(word for word in one.at_most_once if parts.isdisjoint(tokenizer.encode(word)))
        one = one._replace(at_most_once=words)
    return one._replace(must_include=(required,))


def choose_named(
    model: TrainedModel,
    plain: list[Sentence],
    named: list[Sentence],
    tag: Tag,
    calibration: TagCalibration,
) -> list[Sentence]:
    """Return the hypotheses that name a tag, unless naming it costs too much.

    Args:
        model: the captioner.
        plain: hypotheses without constraints, best first.
        named: hypotheses that name the tag, best first.
        tag: most probable tag of the image.
        calibration: what naming a tag may cost.
    """
    if not named:
        return plain
    loss = mean_log_prob(model, plain[0]) - mean_log_prob(model, named[0])
    return named if tag.probability >= calibration.certain or loss <= calibration.max_loss else plain


def start_with_tags(
    models: Sequence[TrainedModel],
    images: EncodedImages,
    settings: DecodingSettings,
    tags: Sequence[Tag],
) -> list[list[Sentence] | None]:
    """Return the hypotheses that start with an article and the tag of each image; None for other kinds of things."""
    tokenizer = models[0].tokenizer
    articles = known_words(tokenizer, ARTICLES.get(models[0].recipe.data.lang, ()))
    starts = [
        (row, f"{article} {known[0]}")
        for row, tag in enumerate(tags)
        if tag.kind in SUBJECT_KINDS and (known := known_words(tokenizer, tag.words))
        for article in articles
    ]
    starts = [(row, text) for row, text in starts if len(tokenizer.encode(text)) < settings.max_length]
    result: list[list[Sentence] | None] = [None] * len(tags)
    if not starts:
        return result
    decoded = generate_captions(models, images.take([row for row, _ in starts]), settings, [text for _, text in starts])
    for (row, _), n_best in zip(starts, decoded, strict=True):
        best = result[row]
        if best is None or best[0].log_prob < n_best[0].log_prob:
            result[row] = n_best
    return result


def required_words(
    tokenizer: Tokenizer,
    caption: Sequence[int],
    tags: Sequence[Tag],
    calibration: TagCalibration,
    max_length: int,
    bans: Bans | None = None,
) -> str | None:
    """Return the words of the most probable tag, of which a caption must include one; None if it needs none.

    Args:
        tokenizer: vocabulary of the captions.
        caption: token ids of the caption without constraints.
        tags: tags of the image, best first.
        calibration: tags that become part of the captions.
        max_length: maximum length of captions in tokens.
        bans: tokens that the caption must not have; None for none.
    """
    if not tags or tags[0].probability < calibration.threshold or tags[0].word in calibration.left_out:
        return None
    spelled = {word: tokenizer.encode(word) for word in known_words(tokenizer, tags[0].words)}
    allowed = bans or Bans()
    known = [word for word, tokens in spelled.items() if len(tokens) <= max_length and allowed.allow(tokens)]
    if not known:
        return None
    required = SEPARATOR.join(known)
    return None if compile_words(tokenizer, (required,)).accepts(caption) else required


def mean_log_prob(model: TrainedModel, hypothesis: Sentence) -> float:
    """Compute the log-probability per token, that of unseen words being that of the words they copy."""
    unseen = sum(token >= model.config.vocab_size for token in hypothesis.tokens)
    return (hypothesis.log_prob - LOG_ODDS * unseen) / (len(hypothesis.tokens) + hypothesis.ended)

"""Translations by phrase-based models, which have a stack decoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from limner.data.dataset import GenerationInput
from limner.decoding.search import Trace
from limner.decoding.sentence import Derivation, Sentence
from limner.decoding.settings import DecodingSettings
from limner.errors import RunError, SettingsError
from limner.models.phrase_based import PhraseBased
from limner.progress import Progress
from limner.runs.trained_model import TrainedModel
from limner.smt import FEATURES
from limner.text.vocab import SPECIAL_TOKENS

if TYPE_CHECKING:
    from limner.smt.system import ScoredTranslation

CHUNK = 64
"""Number of sentences between two reports of progress."""


def search_translations(
    models: Sequence[TrainedModel],
    inputs: Sequence[GenerationInput],
    settings: DecodingSettings,
    prefixes: Sequence[str] | None = None,
    trace: Trace | None = None,
    on_progress: Progress | None = None,
) -> list[list[Sentence]]:
    """Translate by a `PhraseBased` in place of `limner.inference.generate.generate`.

    Returns:
        The `n_best` hypotheses of each input, with their score in place of a log-probability.

    Raises:
        RunError: there are several models.
        SettingsError: words to include are given, or a decoding setting without effect on this search.
    """
    if len(models) > 1:
        raise RunError(
            f"model '{models[0].recipe.model.name}' has no probabilities, so it cannot be part of an ensemble; "
            "name one --model"
        )
    model = models[0].model
    assert isinstance(model, PhraseBased) and models[0].source_tokenizer is not None
    name, default = models[0].recipe.model.name, DecodingSettings()
    unused = ("length_penalty", "min_length", "max_length", "no_repeat_ngram_size", "ban_unknown", "sample")
    if changed := [setting for setting in unused if getattr(settings, setting) != getattr(default, setting)]:
        raise SettingsError(
            f"decoding.{changed[0]}: model '{name}' has a search of its own, without this setting; leave it out (it "
            "uses beam_size, the number of hypotheses of a stack, and n_best)"
        )
    if prefixes is not None or trace is not None or any(entry.must_include for entry in inputs):
        raise SettingsError(
            f"model '{name}' takes whole phrases: it has no prefix, no words that are "
            "included and no beam to show; leave these options out"
        )
    sources = [models[0].source_tokenizer.encode(generation_input.source or "") for generation_input in inputs]
    rows = [row for row, source in enumerate(sources) if source]
    hypotheses = [[Sentence((), 0.0, 0.0, True)] for _ in inputs]
    for start in range(0, len(rows), CHUNK):
        part = rows[start : start + CHUNK]
        pieces = [models[0].source_tokenizer.pieces(inputs[row].source or "") for row in part]
        copies = [[models[0].tokenizer.token_id(piece) for piece in source_pieces] for source_pieces in pieces]
        n_best_lists = model.search_translations(
            [sources[row] for row in part], copies, settings.n_best, settings.beam_size
        )
        for row, source_pieces, translations in zip(part, pieces, n_best_lists, strict=True):
            hypotheses[row] = [
                _hypothesis(translation, source_pieces).decoded(models[0].tokenizer) for translation in translations
            ]
        if on_progress is not None:
            on_progress(start + len(part), len(rows))
    return hypotheses


def _hypothesis(translation: ScoredTranslation, pieces: Sequence[str]) -> Sentence:
    """Return a translation as a hypothesis, with the aligned pieces of the source for its unknown tokens."""
    sources = {target: source for source, target in translation.alignment}
    unknown = [position for position, token in enumerate(translation.tokens) if token == SPECIAL_TOKENS.unk]
    copied = tuple(pieces[sources[position]] for position in unknown)
    features = tuple(zip(FEATURES, translation.features.tolist(), strict=True))
    derivation = Derivation(translation.phrases, translation.alignment)
    return Sentence(
        translation.tokens,
        translation.score,
        translation.score,
        copied=copied,
        features=features,
        derivation=derivation,
    )

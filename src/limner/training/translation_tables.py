"""The stage of a phrase-based translation model: estimation, tuning and validation."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from limner.data.tally import Tally
from limner.errors import TrainingError
from limner.evaluation.validate import validate
from limner.models.phrase_based import ParallelCorpus, PhraseBased
from limner.text.tokenizer import Tokenizer
from limner.text.vocab import SPECIAL_TOKENS, WORD_START
from limner.training.context import TrainingContext, TrainProgress

logger = logging.getLogger(__name__)


class TranslationTableStage:
    """Estimation of a `PhraseBased` from the training split, and its tuning on the validation split."""

    def start(self, run: TrainingContext) -> None:
        """Nothing to prepare."""

    def finished(self, run: TrainingContext) -> bool:
        """Whether the model was estimated."""
        return run.state.epoch > 0

    def run_epoch(self, run: TrainingContext) -> None:
        """Estimate and tune the model, save it, and validate it."""
        model = run.trained.model
        assert isinstance(model, PhraseBased)
        corpus = parallel_corpus(run)
        notes = _note_skipped(run, corpus)
        facts = notes | model.fit_pairs(corpus, run.trained.recipe.decoding.beam_size, partial(_report, run))
        run.state.epoch = 1
        run.save_model(**facts)  # before the validation, so that an error in it loses nothing
        names = dict.fromkeys((run.settings.metric, *run.settings.metrics))
        run.state.best_values = validate(run.trained, run.validation_set, names)
        run.state.best = run.state.best_values.get(run.settings.metric)
        run.log.validation(run.state, run.state.best_values)
        run.save_model(**facts)


def _report(run: TrainingContext, part: str, done: int, total: int) -> None:
    if run.on_progress is not None:
        run.on_progress(TrainProgress(run.state, total, part, done))


def parallel_corpus(run: TrainingContext) -> ParallelCorpus:
    """Collect the sentences that a `PhraseBased` is estimated and tuned on.

    Raises:
        TrainingError: no training pair has words on both sides, or no validation sentence has; or a validation sentence
            has no reference.
    """
    training, data = run.training_set, run.trained.recipe.data
    assert training.sources is not None and training.source is not None
    rows = training.epoch_rows(run.settings.seed, 0)
    pairs = [(training.sources[row], training.targets[row]) for row in rows]
    pairs = [(source, target) for source, target in pairs if len(source) and len(target)]
    tuning = _tuning_sentences(run, training.source.tokenizer, _Words(run.trained.tokenizer))
    for split, sentence_pairs in ((data.train, pairs), (data.val, tuning)):
        if not sentence_pairs:
            raise TrainingError(
                f"{run.collection.path}: split '{split}' has no pair of sentences with words on both sides; add some, "
                "or name another split (data.train, data.val)"
            )
    sources, targets = zip(*pairs, strict=True)
    tuning_sources, tuning_copies, references = zip(*tuning, strict=True)
    return ParallelCorpus(
        sources,
        targets,
        _language_model_sentences(run, targets),
        tuning_sources,
        tuning_copies,
        references,
        run.trained.tokenizer.entries,
        run.settings.seed,
    )


def _note_skipped(run: TrainingContext, corpus: ParallelCorpus) -> dict[str, list[str]]:
    """Log how many sentences are left out, and return the notes of the training with them, for the records."""
    data, provenance = run.trained.recipe.data, run.trained.config.provenance
    pairs = len(run.training_set.epoch_rows(run.settings.seed, 0)) - len(corpus.sources)
    tuning = len(run.validation_set.generation_inputs()) - len(corpus.tuning_sources)
    lines = []
    for split, reason, count in (
        (data.train, "pairs with a side without words", pairs),
        (data.val, "source sentences without words, in the tuning", tuning),
    ):
        tally = Tally()
        tally.skip(reason, count=count)
        lines += tally.lines(split)
    for line in lines:
        logger.warning("%s", line)
    return {"notes": [*provenance.get("notes", ()), *lines]} if lines else {}


def _tuning_sentences(
    run: TrainingContext, source: Tokenizer, words: _Words
) -> list[tuple[list[int], list[int], list[list[int]]]]:
    """Encode the source sentences of the validation split, their words if they are copied, and their references."""
    result, data = [], run.trained.recipe.data
    for example in run.validation_set.generation_inputs():
        text = example.source or ""
        references = [ids for reference in example.references if (ids := words.encode(reference))]
        if not references:
            raise TrainingError(
                f"{run.collection.path}: item '{example.item.id}' of split '{data.val}' has no reference in "
                f"'{data.lang}' with words; correct its sentences, or leave it out"
            )
        result.append((source.encode(text), [words.id_of(piece) for piece in source.pieces(text)], references))
    return [pair for pair in result if pair[0]]


def _language_model_sentences(run: TrainingContext, targets: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
    """Return the target sentences of the pairs, or all human sentences, for the language model.

    Words outside the vocabulary have other ids here than in validation sentences.
    """
    assert isinstance(run.trained.model, PhraseBased)
    settings = run.trained.model.settings
    if settings.language_model == "pairs" or settings.language_model_file is not None:
        return targets
    data, words = run.trained.recipe.data, _Words(run.trained.tokenizer)
    sentences = [words.encode(text) for item in run.collection.items(data.train) for text in item.texts(data.lang)]
    logger.info("language model: %d sentences, %d pairs", len(sentences), len(targets))
    if len(sentences) <= len(targets):
        logger.warning(
            "model.language_model=all: split '%s' has no sentences in '%s' besides the pairs, so the language "
            "model is the same as with model.language_model=pairs; import more sentences, without translations",
            data.train,
            data.lang,
        )
    return sentences


class _Words:
    """Token ids of words; words outside the vocabulary get ids from its size on."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._unknown: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        """Convert a sentence to ids; a word with unknown subwords has one id."""
        ids: list[int] = []
        for word in self._tokenizer.words(text):
            known = self._tokenizer.encode_word(word)
            ids.extend((self._new(word),) if SPECIAL_TOKENS.unk in known else known)
        return ids

    def id_of(self, piece: str) -> int:
        """Return the id of a piece of a source sentence; see `Tokenizer.pieces`."""
        known = self._tokenizer.token_id(piece)
        return self._new(piece.removeprefix(WORD_START)) if known == SPECIAL_TOKENS.unk else known

    def _new(self, word: str) -> int:
        return self._unknown.setdefault(word, len(self._tokenizer) + len(self._unknown))

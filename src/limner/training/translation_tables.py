"""The stage of a translation model with a search of its own: estimation, tuning and validation."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from limner.data.dataset import Examples
from limner.errors import TrainingError
from limner.evaluation.validate import validate
from limner.models.capabilities import ParallelCorpus, SearchingModel
from limner.models.phrase_based import PhraseBasedSettings
from limner.text.tokenizer import Tokenizer
from limner.text.vocab import SPECIAL_TOKENS, WORD_START
from limner.training.context import TrainingContext
from limner.training.state import Moment

logger = logging.getLogger(__name__)


class TranslationTableStage:
    """Estimation of a `SearchingModel` from the training split, and its tuning on the validation split."""

    def start(self, run: TrainingContext) -> None:
        """Nothing to prepare."""

    def finished(self, run: TrainingContext) -> bool:
        """Whether the model was estimated."""
        return run.state.epoch > 0

    def run_epoch(self, run: TrainingContext) -> None:
        """Estimate and tune the model, save it, and validate it."""
        model = run.trained.model
        assert isinstance(model, SearchingModel)
        began = Moment.now()
        facts = model.fit_pairs(parallel_corpus(run), run.trained.recipe.decoding.beam_size)
        run.state.add_time(began)
        run.state.epoch = 1
        run.save_model(**facts)  # before the validation, so that an error in it loses nothing
        names = dict.fromkeys((run.settings.metric, *run.settings.metrics))
        run.state.best_values = validate(run.trained, run.validation_set, names)
        run.state.best = run.state.best_values.get(run.settings.metric)
        run.log.validation(run.state, run.state.best_values)
        run.save_model(**facts)


def parallel_corpus(run: TrainingContext) -> ParallelCorpus:
    """Collect the sentences that a `SearchingModel` is estimated and tuned on.

    Raises:
        TrainingError: no training pair has words on both sides, or no validation sentence has.
    """
    training, validation, data = run.training_set, run.validation_set, run.trained.recipe.data
    assert training.sources is not None and training.source is not None
    rows = training.epoch_rows(run.settings.seed, 0)
    pairs = [(training.sources[row], training.targets[row]) for row in rows]
    pairs = [(source, target) for source, target in pairs if len(source) and len(target)]
    tuning = _tuning_sentences(validation, training.source.tokenizer, _Words(run.trained.tokenizer))
    for split, found in ((data.train, pairs), (data.val, tuning)):
        if not found:
            raise TrainingError(
                f"{run.collection.path}: split '{split}' has no pair of sentences with words on both sides; add some, "
                "or name another split (data.train, data.val)"
            )
    settings = run.trained.recipe.model
    language_model: Sequence[Sequence[int]] = [target for _, target in pairs]
    if isinstance(settings, PhraseBasedSettings) and settings.language_model == "all":
        language_model = list(_sentences(run, _Words(run.trained.tokenizer)))
        logger.info("language model: %d sentences, %d pairs", len(language_model), len(pairs))
        if len(language_model) <= len(pairs):
            logger.warning(
                "model.language_model=all: split '%s' has no sentences in '%s' besides those of the pairs, so the "
                "language model is that of model.language_model=pairs; import more sentences, without translations",
                data.train,
                data.lang,
            )
    sources, targets = zip(*pairs, strict=True)
    entries = run.trained.tokenizer.entries
    return ParallelCorpus(sources, targets, language_model, *zip(*tuning, strict=True), entries, run.settings.seed)


def _tuning_sentences(
    validation: Examples, source: Tokenizer, words: _Words
) -> list[tuple[list[int], list[int], list[list[int]]]]:
    """Encode the source sentences of the validation split, their words if they are copied, and their references."""
    result = []
    for one in validation.generation_inputs():
        text = one.source or ""
        references = [words.encode(reference) for reference in one.references]
        result.append((source.encode(text), [words.id_of(piece) for piece in source.pieces(text)], references))
    return [(ids, copies, references) for ids, copies, references in result if ids and all(references)]


def _sentences(run: TrainingContext, words: _Words) -> Iterable[list[int]]:
    """Encode all sentences of the training split in the target language that people wrote."""
    lang = run.trained.recipe.data.lang
    for item in run.collection.items(run.trained.recipe.data.train):
        for text in item.texts(lang):
            yield words.encode(text)


class _Words:
    """Token ids of words; those that are not in the vocabulary get ids from its size on."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._unknown: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        """Convert a sentence to ids; of a word with unknown subwords the whole word has one id."""
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

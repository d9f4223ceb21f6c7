"""Phrase-based statistical machine translation, Koehn et al. (2003, 2007): PBSMT of Calixto et al. (2016, 2017).

The parts are in `limner.smt`. Shapes: N nodes of the language model, P phrase pairs, M nodes of the source phrases, W
words of the target phrases, V vocabulary.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from limner.bounds import Bounds, Few, Order
from limner.errors import RunError, SettingsError, TrainingError, extra_module
from limner.models.protocols import ConditionalLMSettings, ModelInputs
from limner.progress import StageProgress
from limner.settings import Settings
from limner.smt import FEATURES, MAX_PHRASE_LENGTH, NUM_FEATURES, NUM_SCORES
from limner.text.vocab import SPECIAL_TOKENS

if TYPE_CHECKING:
    from limner.smt.language_model import LanguageModel
    from limner.smt.phrases import PhraseTable
    from limner.smt.system import ScoredTranslation, System

logger = logging.getLogger(__name__)


class ParallelCorpus(NamedTuple):
    """Training and validation data of a `PhraseBased` model, as token ids without special tokens."""

    sources: Sequence[Sequence[int]]
    targets: Sequence[Sequence[int]]
    language_model: Sequence[Sequence[int]]
    """Sentences of the target language; words outside the vocabulary have ids from its size on."""
    tuning_sources: Sequence[Sequence[int]]
    tuning_copies: Sequence[Sequence[int]]
    """Target token of each token of `tuning_sources` if it is copied, with the ids of `tuning_references`."""
    tuning_references: Sequence[Sequence[Sequence[int]]]
    """References of each of `tuning_sources`; words outside the vocabulary have other ids than in `language_model`,
    also from its size on."""
    target_words: Sequence[str]
    """Entries of the target vocabulary."""
    seed: int
    """Seed of the tuning."""


class TuningSettings(Settings):
    """Settings of the tuning of the weights on the validation split."""

    method: Literal["mert", "none"] = "mert"
    """Minimum error rate training (Och, 2003), or no tuning."""
    iterations: Few = 10
    """Maximum number of times that the validation split is translated, with the initial weights first: with 1, they are
    measured and kept."""
    n_best: Few = 100
    """Number of translations of each sentence in an iteration."""


class PhraseBasedSettings(ConditionalLMSettings):
    """Settings of phrase-based translation; defaults follow Koehn et al. (2007) unless the papers differ."""

    translates: ClassVar = True
    scores_sentences: ClassVar = False
    has_gradients: ClassVar = False
    maximises_likelihood: ClassVar = False
    name: Literal["phrase_based"] = "phrase_based"
    order: Order = 5
    """Order of the language model, Calixto et al. (2017), section 5.1."""
    language_model: Literal["pairs", "all"] = "pairs"
    """Sentences that the language model is estimated from: the target sides of the training pairs, or all sentences of
    the training split in the target language, including sentences without a translation."""
    language_model_file: Path | None = None
    """ARPA file of a language model, which is used in place of an estimated one. Its words are looked up in the target
    vocabulary; words of the vocabulary that it lacks have the probability of <unk>."""
    word_alignment: Literal["ibm1", "ibm2", "hmm", "ibm3", "ibm4"] = "ibm4"
    """Model of the word alignments: IBM models (Brown et al., 1993) or hidden Markov model (Vogel et al., 1996)."""
    max_phrase_length: Annotated[int, Bounds(1, 7)] = 7
    """Maximum number of words of a phrase."""
    lexical_weights: Literal["moses", "koehn"] = "moses"
    """Estimate of the lexical weights: the estimate of Moses, or the formula of Koehn et al. (2003), section 3.3. For
    the probability of a source word given a target word, Moses also counts the occurrences of the target word that are
    aligned with no source word, so that the probability is smaller; in the other direction likewise."""
    table_limit: Few = 20
    """Maximum number of phrase pairs of a source phrase that are kept: the pairs of largest phi(e | f)."""
    distortion_limit: Annotated[int, Bounds(0, 40)] = 6
    """Maximum distance in words from the first untranslated source word to the end of the next phrase. A phrase that
    begins at that word is always allowed."""
    tuning: TuningSettings = TuningSettings()
    """Tuning of the weights."""


class PhraseBased(nn.Module):
    """Log-linear model of phrase pairs with a stack decoder (Koehn et al., 2003, 2007; Och and Ney, 2002).

    The translation of a sentence f is the segmentation into phrase pairs, and their order, that maximises

        sum_k lambda_k h_k(f, e, segmentation)

    where h are the 15 features of `limner.smt.features`: a language model with modified Kneser-Ney smoothing, phrase
    and lexical translation probabilities in both directions, lexicalised reordering (msd-bidirectional-fe), distortion,
    and the numbers of words, phrases and copied words. The weights lambda are tuned on BLEU.

    Departures from Moses as the papers use it, each stated where it is implemented: the distortion of IBM model 4
    has no word classes; lexical weights are the largest of all alignments of a pair (estimated as by Moses,
    `lexical_weights`); the pairs of a source phrase are limited by phi(e | f) alone; phrases whose corners are aligned
    on both sides are monotone; the last phrase also gets a score of the next orientation; all hypotheses that are made
    for a stack are extended; MERT has fewer restarts and takes the first improvement.
    """

    Settings: ClassVar = PhraseBasedSettings
    uses_image = False

    _DTYPES: ClassVar = {
        "lm_suffixes": torch.int64,
        "lm_firsts": torch.int32,
        "lm_log_probs": torch.float64,
        "lm_log_backoffs": torch.float64,
        "edges": torch.int64,
        "first": torch.int64,
        "word_starts": torch.int64,
        "words": torch.int32,
        "scores": torch.float32,
        "alignments": torch.int64,
        "weights": torch.float64,
    }

    def __init__(self, settings: PhraseBasedSettings, inputs: ModelInputs) -> None:
        super().__init__()
        assert inputs.source_vocab_size is not None, "phrase-based models translate"
        self.settings, self.vocab_size, self.source_vocab_size = settings, inputs.vocab_size, inputs.source_vocab_size
        for name, dtype in self._DTYPES.items():
            self.register_buffer(name, torch.zeros(0, dtype=dtype))
        self._system: System | None = None  # arrays for compiled code, built from the buffers at first use

    def fit_pairs(self, corpus: ParallelCorpus, beam_size: int, on_progress: StageProgress) -> dict[str, object]:
        """Estimate all tables and tune the weights; return facts for the records; TrainingError without alignment."""
        extra_module("numba", "phrase-based translation", "smt")
        from limner.smt.features import DEFAULT_WEIGHTS

        on_progress("language model", 0, 1)
        lm = self._language_model(corpus)
        logger.info("language model: %d n-grams of up to %d words", len(lm.firsts), self.settings.order)
        on_progress("word alignments and phrase pairs", 0, 1)
        phrases = self._phrase_table(corpus)
        self._register(lm, phrases, DEFAULT_WEIGHTS)
        history = () if self.settings.tuning.method == "none" else self._tune(corpus, beam_size, on_progress)
        return {
            "phrase_pairs": len(phrases.scores),
            "language_model_ngrams": len(lm.firsts),
            "tuning_bleu": [round(100 * value, 3) for value in history],
            "feature_weights": dict(zip(FEATURES, self.get_buffer("weights").tolist(), strict=True)),
        }

    def _phrase_table(self, corpus: ParallelCorpus) -> PhraseTable:
        """Align the words of the sentence pairs, extract phrase pairs and score them."""
        from limner.smt.extraction import align, extract_all
        from limner.smt.phrases import score

        settings, sizes = self.settings, (self.source_vocab_size, self.vocab_size)
        alignments = align(corpus.sources, corpus.targets, settings.word_alignment)
        limits = (settings.max_phrase_length, settings.lexical_weights)
        instances = extract_all(corpus.sources, corpus.targets, alignments, sizes, *limits)
        if not len(instances.previous):
            raise TrainingError(
                f"phrase-based model: no words of the {len(alignments)} sentence pairs could be aligned, except "
                "with words that are not in the vocabularies, so that there are no phrases; add sentence pairs"
            )
        words = (np.concatenate([np.array(ids) for ids in part]) for part in (corpus.sources, corpus.targets))
        phrases = score(instances, next(words), next(words), sizes, settings.table_limit)
        logger.info("phrase table: %d pairs of %d occurrences", len(phrases.scores), len(instances.previous))
        return phrases

    def _tune(self, corpus: ParallelCorpus, beam_size: int, on_progress: StageProgress) -> tuple[float, ...]:
        """Tune the weights; return BLEU, 0 to 1, of each iteration."""
        from limner.smt.tuning import TuningOptions, TuningSet, tune

        tuning = self.settings.tuning
        options = TuningOptions(tuning.iterations, tuning.n_best, corpus.seed)
        data = TuningSet(corpus.tuning_sources, corpus.tuning_copies, corpus.tuning_references)
        on_progress("tuning", 0, tuning.iterations)
        weights, history = tune(
            self._at(beam_size),
            data,
            options,
            lambda iteration, bleu: on_progress(f"tuning, BLEU {100 * bleu:.2f}", iteration, tuning.iterations),
        )
        self.weights = torch.from_numpy(weights)
        self._system = None
        return history

    def _language_model(self, corpus: ParallelCorpus) -> LanguageModel:
        """Estimate the language model, or read it from the file of the settings."""
        from limner.smt.arpa import read_arpa
        from limner.smt.language_model import estimate

        order, file = self.settings.order, self.settings.language_model_file
        if file is not None:
            lm = read_arpa(file, corpus.target_words)
            if lm.order != order:
                raise SettingsError(
                    f"{file}: expected n-grams of up to {order} words (model.order), found up to {lm.order}; set "
                    f"model.order={lm.order}"
                )
            return lm
        largest = max((max(ids, default=0) for ids in corpus.language_model), default=0)
        return estimate(corpus.language_model, order, max(self.vocab_size, largest + 1)).cut(self.vocab_size)

    def language_model(self) -> LanguageModel:
        """Return the n-gram language model of the target language."""
        return self._tables()[0]

    def search_translations(
        self, sources: Sequence[Sequence[int]], copies: Sequence[Sequence[int]], n_best: int, beam_size: int
    ) -> list[list[ScoredTranslation]]:
        """Translate sentences of at least one token; see `PhraseBased`."""
        return self._at(beam_size).translate_all(sources, copies, n_best)

    def _at(self, beam_size: int) -> System:
        """Return the system that searches with stacks of a size."""
        if self._system is None:
            self._system = self._build()
        return self._system._replace(limits=self._system.limits._replace(stack_size=beam_size))

    def _build(self) -> System:
        """Build the arrays and hash tables that compiled code reads from the buffers."""
        extra_module("numba", "phrase-based translation", "smt")
        from limner.smt.features import Limits, build_tables
        from limner.smt.system import System

        settings, (lm, phrases) = self.settings, self._tables()
        limits = Limits(1, settings.distortion_limit, settings.max_phrase_length)
        return System(build_tables(lm, phrases), phrases.alignments, self.get_buffer("weights").cpu().numpy(), limits)

    def _tables(self) -> tuple[LanguageModel, PhraseTable]:
        """Return the language model and the phrase table."""
        from limner.smt.language_model import LanguageModel
        from limner.smt.phrases import PhraseTable

        def array(name: str) -> Any:  # noqa: ANN401  (arrays of several types)
            values = self.get_buffer(name).cpu().numpy()
            return values.astype(np.int64) if values.dtype == np.int32 else values

        lm = LanguageModel(
            self.settings.order,
            self.vocab_size,
            *(array(f"lm_{name}") for name in ("suffixes", "firsts", "log_probs", "log_backoffs")),
        )
        names = ("edges", "first", "word_starts", "words", "scores", "alignments")
        return lm, PhraseTable(self.source_vocab_size, *map(array, names))

    def _register(self, lm: LanguageModel, phrases: PhraseTable, weights: Any) -> None:  # noqa: ANN401  (an array)
        values = (
            {f"lm_{name}": value for name, value in lm._asdict().items()} | phrases._asdict() | {"weights": weights}
        )
        for name, dtype in self._DTYPES.items():
            setattr(self, name, torch.from_numpy(np.asarray(values[name])).to(dtype))
        self._system = None

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> object:
        """Load tables of any size, see `nn.Module`; RunError if they do not fit one another or the vocabularies."""
        if all(name in state_dict for name in self._DTYPES):  # missing tensors are reported below
            _check({name: state_dict[name] for name in self._DTYPES}, self.vocab_size, self.source_vocab_size)
        for name, buffer in self.named_buffers():
            if name in state_dict:
                setattr(self, name, buffer.new_empty(state_dict[name].shape))
        self._system = None
        return super().load_state_dict(state_dict, strict, assign)


def _check(tables: dict[str, Tensor], vocab_size: int, source_vocab_size: int) -> None:
    """Check that tables can be read by compiled code, which does not check its indices; or RunError."""

    def within(name: str, low: int, high: int | Tensor) -> bool:
        values = tables[name]
        return bool(((values >= low) & (values < high)).all())

    def ascends(name: str, last: int) -> bool:
        values = tables[name]
        return (
            bool(len(values)) and int(values[0]) == 0 and bool((values.diff() >= 0).all()) and int(values[-1]) == last
        )

    nodes, pairs, edges = (len(tables[name]) for name in ("lm_firsts", "alignments", "edges"))
    fits = (
        all(tables[name].ndim == (2 if name == "scores" else 1) for name in tables)
        and all(len(tables[f"lm_{name}"]) == nodes for name in ("suffixes", "log_probs", "log_backoffs"))
        and nodes >= vocab_size
        and within("lm_firsts", 0, vocab_size)
        and within("lm_suffixes", -1, torch.arange(nodes))
        and bool((tables["lm_suffixes"][vocab_size:] >= 0).all())
        and within("edges", 0, (edges + 1) * source_vocab_size)
        and len(np.unique(tables["edges"].numpy())) == edges
        and len(tables["first"]) == edges + 2
        and ascends("first", pairs)
        and len(tables["word_starts"]) == pairs + 1
        and ascends("word_starts", len(tables["words"]))
        and within("words", 0, vocab_size)
        and not (tables["words"] == SPECIAL_TOKENS.unk).any()  # it stands for a copied word
        and within("alignments", 0, 1 << MAX_PHRASE_LENGTH**2)
        and tuple(tables["scores"].shape) == (pairs, NUM_SCORES)
        and tuple(tables["weights"].shape) == (NUM_FEATURES,)
    )
    if not fits:
        shapes = ", ".join(f"{name} {tuple(values.shape)}" for name, values in tables.items())
        raise RunError(
            f"phrase-based model: the tables do not fit one another and vocabularies of {source_vocab_size} and "
            f"{vocab_size} tokens ({shapes}); restore the model.safetensors of the same training"
        )

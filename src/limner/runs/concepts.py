"""Concepts: a layer on the pooled features x of a backbone for the things and words that people name.

    p(c | image) = sigmoid(w_c x + b_c + a_c log sum_k p(k | x))

over the classes k of ImageNet that belong to concept c, by the classifier of the backbone. A run directory has them in
concepts.json (names, rates, settings) and concepts.safetensors (weights), written by `pretrained/pack_concepts.py`.
They choose among the captions of an image, give tags and the confidence of a caption, and answer queries. Beside them,
a Bloom filter has the trigrams of the sentences of corpora. Nothing here needs torch.

Shapes: C concepts, D feature size, M bytes of the filter, a power of 2.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from limner.bounds import CountOrNone, Measured, Probability
from limner.errors import RunError, SettingsError, system_reason
from limner.features.encoders.published_weights import read_weights
from limner.features.spec import FeatureSpec, in_float32
from limner.files.structured import StructureError, read_json_file
from limner.runs.pretrained import pretrained_run
from limner.settings import Settings
from limner.text.vocab import SPECIAL_TOKENS

if TYPE_CHECKING:
    from limner.data.examples import StoredFeatures

FILE = "concepts.json"
"""File of a run directory with the names of the concepts."""
WEIGHTS = "concepts.safetensors"
"""File of a run directory with the weights of the layer."""
MAX_TAGS = 5
"""Maximum number of tags of an image."""
TAG_PROBABILITY = 0.2
"""Probability below which a concept is no tag."""
KIND_SHARE = 0.5
"""Smallest share of a kind's probability with which its most probable thing replaces the kind: below a half, the other
things of the kind are more probable together."""
FLOOR = 1e-3
"""Smallest probability and rate in logarithms."""
CLASS_FLOOR = 1e-4
"""Smallest probability of classes of ImageNet in logarithms."""
HASHES = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xD6E8FEB86659FD93], np.uint64)
"""Odd factors of the multiply-shift hashes of trigrams."""
UNSPACED = ("zh", "ja", "th")
"""Languages without spaces between words, whose names are sought among characters."""

Vector = NDArray[np.float32]
Bits = NDArray[np.uint8]


class Tag(NamedTuple):
    """Name of a thing in an image."""

    word: str
    """The usual noun, in the language of the captions."""
    probability: float
    kind: str
    """More general noun, such as animal; empty for none."""


class Concept(Settings):
    """A thing, a kind of things, or another word of captions."""

    name: str
    """The usual noun or word."""
    kind: str = ""
    """More general noun of a thing; empty for none."""
    sentence: str = ""
    """Plain sentence about a thing or a kind of things, such as 'a photo of a cup'; empty for another word."""
    classes: tuple[CountOrNone, ...] = ()
    """Classes of ImageNet that are this thing."""


class Calibration(Settings):
    """How concepts choose among captions; fitted on validation photographs."""

    weight: Measured = 1.0
    """Weight of the evidence for a caption beside its log-probability per token: the sum of log p(c | image) + `margin`
    over the things that it names, and of `word_weight` (log p(c | image) - log p(c)) over its other words."""
    search_weight: Measured = 1.0
    """Weight of the evidence for a word beside its log-probability in the search."""
    word_weight: Measured = 0.3
    """Weight of a word that names no thing, relative to a word that names a thing."""
    margin: Measured = 2.5
    """-log of the probability above which a thing in a caption counts as evidence for the caption."""
    unseen: Measured = 0.0
    """Loss of a trigram that is not in the filter of the corpora."""
    consensus: Measured = 0.0
    """Weight of the similarity of a hypothesis to the other hypotheses of the beam, see `limner.generation.rules`."""
    min_confidence: Probability = 0.15
    """Confidence below which a caption is replaced by a plain sentence, or withheld."""
    plain_probability: Probability = 0.4
    """Smallest probability of a thing in a plain sentence."""
    overlooked: Probability = 1.0
    """Probability above which the most probable thing replaces a caption that does not name it; 1 for never."""


class ConceptsFile(Settings):
    """Content of concepts.json."""

    lang: str
    """Language of the names."""
    backbone_sha256: str
    """SHA-256 of the weights of the backbone whose features the layer reads."""
    backbone: str = ""
    """Backbone whose classifier gives the probabilities of the classes; empty where no concept has classes."""
    photograph: CountOrNone
    """Number of the concept that is true of every photograph, and not of drawings, screenshots and noise."""
    calibration: Calibration = Calibration()
    concepts: tuple[Concept, ...]
    rates: tuple[Probability, ...]
    """Share of the training photographs that show each concept."""
    names: dict[str, tuple[CountOrNone, ...]]
    """Numbers of the concepts that a name, of one word or several as `Concepts.split` gives them, may mean; none for a
    name that only contains the name of a thing ('a couple of')."""


WordColumns = tuple[int, NDArray[np.int64], NDArray[np.int64]]
"""Number V of words, and pairs of a word and a concept that it may mean."""


class Concepts:
    """The layer with the names of its concepts."""

    def __init__(
        self, file: ConceptsFile, weight: Vector, bias: Vector, gain: Vector | None = None, trigrams: Bits | None = None
    ) -> None:
        """Create the layer of weights w (C, D), biases b (C,) and gains a (C,) of the classes; None for zeros.

        `trigrams` is the filter of the trigrams of corpora, (M,), see `trigram_bits`; None for none.
        """
        self.file, self.weight, self.bias, self.trigrams = file, weight, bias, trigrams
        self.gain = np.zeros_like(bias) if gain is None else gain
        self.calibration = file.calibration
        self._log_rates = np.log(np.maximum(np.array(file.rates, np.float32), FLOOR))
        self.things = np.array([column for column, concept in enumerate(file.concepts) if concept.sentence], np.int64)
        """Numbers of the concepts that are things or kinds of things."""
        numbers = {concept.name: column for column, concept in enumerate(file.concepts)}
        kinds = ((column, numbers.get(concept.kind)) for column, concept in enumerate(file.concepts))
        self._kinds = {column: kind for column, kind in kinds if kind is not None}  # of each thing that has one
        self._no_kinds = self.things[~np.isin(self.things, [*self._kinds.values()])]  # things that are no kinds
        self._between = "" if file.lang in UNSPACED else " "  # the words of a name
        self._names = {name.lower(): columns for name, columns in file.names.items()}
        self._longest: dict[str, int] = {}  # number of words of the longest name that begins with a word
        for name in self._names:
            first, *rest = name.split(self._between) if self._between else [*name] or [""]
            self._longest[first] = max(self._longest.get(first, 0), 1 + len(rest))

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """Read the concepts of a run directory, None where it has none; RunError if a file is damaged."""
        path = folder / FILE
        if not path.exists():
            return None
        try:
            file = ConceptsFile.parse(read_json_file(path), str(path))
            tensors = load_file(folder / WEIGHTS)
            weight, bias, gain = (tensors[name].astype(np.float32) for name in ("weight", "bias", "gain"))
            trigrams = tensors.get("trigrams")
        except (OSError, SettingsError, StructureError, SafetensorError, KeyError, ValueError) as error:
            raise RunError(f"{path}: missing or damaged ({system_reason(error)}); restore the files") from None
        count = len(file.concepts)
        columns = {column for columns in file.names.values() for column in columns} | {file.photograph}
        if (
            weight.ndim != 2
            or not bias.shape == gain.shape == (count,)
            or len(weight) != count
            or not columns <= set(range(count))
        ):
            raise RunError(f"{path}: expected {count} concepts, found weights of {weight.shape}; restore the files")
        if not all(np.isfinite(values).all() for values in (weight, bias, gain)):
            raise RunError(f"{folder / WEIGHTS}: NaN or infinity in the weights; restore the file")
        if len(file.rates) != count:
            raise RunError(f"{path}: expected {count} rates, found {len(file.rates)}; restore the file")
        if trigrams is not None and (trigrams.dtype.name, trigrams.ndim, trigrams.size.bit_count()) != ("uint8", 1, 1):
            raise RunError(f"{folder / WEIGHTS}: expected a power of 2 bytes of trigrams; restore the file")
        return cls(file, weight, bias, gain, trigrams)

    def reads(self, specs: Iterable[FeatureSpec]) -> bool:
        """Whether the layer reads some features: the pooled features or the last grid of its backbone."""
        return any(
            spec.weights_sha256 == self.file.backbone_sha256
            and spec.kind in ("pooled", "grid")
            and spec.layer is None
            and spec.regions is None
            and spec.frames is None
            for spec in specs
        )

    def of_vectors(self, vectors: Vector, columns: Sequence[int] | slice = slice(None)) -> Vector:
        """Compute the probability (N, C) of concepts, of pooled features (N, D); BackboneError without weights."""
        logits, gain = vectors @ self.weight[columns].T + self.bias[columns], self.gain[columns]
        if gain.any():
            weight, bias, classes = self._classifier
            of_classes = vectors @ weight.T + bias
            of_classes = np.exp(of_classes - of_classes.max(1, keepdims=True))
            sums = (of_classes @ classes[columns].T) / of_classes.sum(1, keepdims=True)
            logits += gain * np.log(np.clip(sums, CLASS_FLOOR, 1 - CLASS_FLOOR))
        return np.asarray(1 / (1 + np.exp(-np.clip(logits, -30, 30))), np.float32)

    @cached_property
    def _classifier(self) -> tuple[Vector, Vector, Vector]:
        """Weights (K, D) and biases (K,) of the classifier, and whether a class is a concept, (C, K)."""
        layer = read_weights(self.file.backbone, self.file.backbone_sha256, "_fc")
        classes = np.zeros((len(self.file.concepts), len(layer["classifier.bias"])), np.float32)
        for column, concept in enumerate(self.file.concepts):
            classes[column, list(concept.classes)] = 1
        return layer["classifier.weight"], layer["classifier.bias"], classes

    def is_photograph(self, probabilities: Vector) -> bool:
        """Whether an image is more likely a photograph than a drawing, a screenshot or noise."""
        return bool(probabilities[self.file.photograph] >= 0.5)

    def most_probable(self, probabilities: Vector) -> float:
        """Return the probability of the most probable thing of an image that is a photograph."""
        return float(probabilities[self.things].max(initial=0) * probabilities[self.file.photograph])

    def tags(self, probabilities: Vector) -> tuple[Tag, ...]:
        """Return the most probable things of an image, best first, each name once."""
        concepts = self.file.concepts
        return tuple(
            Tag(concepts[column].name, float(probabilities[column]), concepts[column].kind)
            for column in self._tagged(probabilities)
        )

    def _tagged(self, probabilities: Vector) -> list[int]:
        """Return the things that are tags, best first; a kind only if none of its things has the share `KIND_SHARE`."""
        concepts, columns, of_kind = self.file.concepts, dict[str, int](), dict[str, float]()
        things = self.things[np.argsort(-probabilities[self.things], kind="stable")]
        for column in things[probabilities[things] >= TAG_PROBABILITY]:
            of_kind.setdefault(concepts[column].kind, float(probabilities[column]))
        for column in things.tolist() if self.is_photograph(probabilities) else ():
            if probabilities[column] < TAG_PROBABILITY or len(columns) == MAX_TAGS:
                break
            if of_kind.get(concepts[column].name, 0.0) < KIND_SHARE * probabilities[column]:
                columns.setdefault(concepts[column].name, column)  # in a translation, two things may have one name
        return [*columns.values()]

    def split(self, text: str) -> list[str]:
        """Split a text into lower-case words, or into characters in a language without spaces."""
        if self.file.lang in UNSPACED:
            return list(re.sub(r"\s+", "", text.lower()))
        return re.findall(r"\w+(?:[-']\w+)*", text.lower())

    def mentions(self, text: str) -> list[tuple[int, ...]]:
        """Return the concepts that each name in a text may mean, in their order; of names that overlap, the longest."""
        words, position, mentioned = self.split(text), 0, []
        while position < len(words):
            longest = self._longest.get(words[position], 0)
            for length in range(min(longest, len(words) - position), 0, -1):
                columns = self._names.get(self._between.join(words[position : position + length]))
                if columns is not None:
                    mentioned += [columns] if columns else []
                    position += length
                    break
            else:
                position += 1
        return mentioned

    def evidence_of_each(self, probabilities: Vector) -> Vector:
        """Compute the evidence of each concept for a sentence that names it, (C,), before `Calibration.weight`."""
        log_probs = np.log(np.maximum(probabilities, FLOOR))
        values: Vector = np.clip(log_probs - self._log_rates, -2.0, 1.5) * self.calibration.word_weight
        values[self.things] = log_probs[self.things] + self.calibration.margin
        return values

    def evidence(self, mentions: Sequence[tuple[int, ...]], values: Vector) -> float:
        """Compute how much the concepts of an image speak for a sentence; 0 for one that names nothing.

        A name counts once; a thing that is named again, and a kind beside a thing of this kind, cost `margin` each.

        Args:
            mentions: concepts that the sentence names, as `mentions` returns them.
            values: result of `evidence_of_each`, (C,).
        """
        counts = Counter(mentions)
        kinds = {self._kinds.get(column) for columns in counts for column in columns}
        repeats = sum(count - 1 for columns, count in counts.items() if self.file.concepts[columns[0]].sentence)
        repeats += sum(not kinds.isdisjoint(columns) for columns in counts)
        total = sum(values[list(columns)].max() for columns in counts) - self.calibration.margin * repeats
        return self.calibration.weight * float(total)

    def columns_of(self, words: Sequence[str]) -> WordColumns:
        """Return the concepts that each of V words may mean."""
        pairs = [(row, column) for row, word in enumerate(words) for column in self._names.get(word.lower(), ())]
        rows, columns = np.array(pairs, np.int64).reshape(-1, 2).T
        return len(words), rows, columns

    def log_ratios(self, probabilities: Vector) -> Vector:
        """Compute log p(c | image) - log p(c) of probabilities (..., C)."""
        return np.asarray(np.log(np.maximum(probabilities, FLOOR)) - self._log_rates)

    def log_probs(self, mentions: Sequence[tuple[int, ...]], vectors: Vector) -> Vector:
        """Compute log p(c | image) of the most probable concept of each mention, (N, n), of pooled features (N, D)."""
        columns = [column for alternatives in mentions for column in alternatives]
        log_probs = np.log(np.maximum(self.of_vectors(vectors, columns), FLOOR))  # (N, columns)
        starts = np.cumsum([0, *map(len, mentions)])[:-1]
        return np.maximum.reduceat(log_probs, starts, axis=1)

    def confidence(self, mentions: Sequence[tuple[int, ...]], probabilities: Vector) -> float:
        """Return the probability of the least probable thing among the `mentions` of a sentence; 0 without a thing."""
        concepts = self.file.concepts
        things = [columns for columns in mentions if any(concepts[column].sentence for column in columns)]
        return float(min((probabilities[list(columns)].max() for columns in things), default=0.0))

    def plain_sentences(self, probabilities: Vector) -> list[tuple[str, float]]:
        """Return plain sentences with their probabilities: of the most probable thing or kind of things, then of tags.

        There are none where nothing is probable, or the image is no photograph.
        """
        concepts = self.file.concepts
        column = int(self.things[probabilities[self.things].argmax()])
        if probabilities[column] < self.calibration.plain_probability or not self.is_photograph(probabilities):
            return []
        of_kind = [thing for thing in self.things.tolist() if concepts[thing].kind == concepts[column].name]
        probable = max(of_kind, key=lambda thing: probabilities[thing], default=column)
        if probabilities[probable] >= self.calibration.plain_probability:  # cat rather than animal
            column = probable
        return [
            (concepts[thing].sentence, float(probabilities[thing]))
            for thing in dict.fromkeys((column, *self._tagged(probabilities)))
        ]

    def overlooked(self, text: str, probabilities: Vector, confidence: float) -> list[tuple[str, float]]:
        """Return the plain sentence about the most probable thing, if a caption of this confidence overlooks it.

        Kinds of things are left out, as a caption may name a thing of the kind. There is at most one sentence.
        """
        column = int(self._no_kinds[probabilities[self._no_kinds].argmax()])
        probability = float(probabilities[column] * probabilities[self.file.photograph])
        if probability <= max(self.calibration.overlooked, confidence):
            return []
        if any(column in names for names in self.mentions(text)):
            return []
        return [(self.file.concepts[column].sentence, probability)]


def largest_of_words(words: WordColumns, values: Vector) -> Vector:
    """Return the largest value (V,) of the concepts that each of V words may mean, of values (C,); 0 without one."""
    size, rows, columns = words
    largest: Vector = np.full(size, -np.inf, np.float32)
    np.maximum.at(largest, rows, values[columns])
    largest[np.isneginf(largest)] = 0
    return largest


def trigram_bits(tokens: Sequence[int], size: int) -> tuple[NDArray[np.int64], Bits]:
    """Return the bytes, and the bits in them, of T + 1 trigrams in a Bloom filter of `size` bytes, (T + 1, 3) each.

    The sentence of the T tokens begins with two <s> and ends with </s>; `size` is a power of 2. Of the trigrams that
    were not added, a share of s^3 has all its bits set, where s is the share of set bits.
    """
    ids = np.array([SPECIAL_TOKENS.bos, SPECIAL_TOKENS.bos, *tokens, SPECIAL_TOKENS.eos], np.uint64)
    keys = (ids[:-2] << 40) + (ids[1:-1] << 20) + ids[2:]
    bits = keys[:, None] * HASHES >> (64 - 3 - size.bit_length() + 1)
    return (bits >> 3).astype(np.int64), np.uint8(1) << (bits & 7).astype(np.uint8)


def pooled_vector(features: StoredFeatures) -> Vector:
    """Return the pooled features (D,) of an image: stored pooled features, or the mean of a grid (L, D)."""
    pooled = features.get("pooled")
    vector: Vector = in_float32(np.asarray(features["grid"] if pooled is None else pooled))
    return vector.mean(0) if vector.ndim == 2 else vector


def concepts_of(folder: Path | None, specs: Sequence[FeatureSpec]) -> tuple[Concepts | None, Concepts | None]:
    """Return the concepts that choose the captions of a run, and the concepts that name tags.

    Args:
        folder: run directory; None for an ensemble, or a model that was not loaded from a folder.
        specs: features that the run reads.

    Returns:
        The concepts of the run, or None; and the concepts of the run, or the built-in English concepts if they read the
        same features, or None.

    Raises:
        RunError: the concepts of the run are damaged, or read other features than the run.
    """
    of_run = None if folder is None else Concepts.load(folder)
    if of_run is not None and not of_run.reads(specs):
        raise RunError(f"{folder}: the concepts read other features than the model; remove {FILE}, or make it again")
    if of_run is not None or not any(spec.kind in ("pooled", "grid") for spec in specs):
        return of_run, of_run
    built_in = Concepts.load(pretrained_run())
    return None, built_in if built_in is not None and built_in.reads(specs) else None

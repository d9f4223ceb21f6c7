"""Maps of a model's words: the vectors of its most frequent words drawn in the plane, with groups and neighbours.

Needs scikit-learn (extra `words`).
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from limner.errors import MissingExtraError, SettingsError
from limner.files import atomic_write
from limner.inference.word_vectors import nearest_words
from limner.models.protocols import WordEmbeddingModel
from limner.report import plots
from limner.runs.trained_model import TrainedModel, load_trained_model
from limner.text.tokenizer import Tokenizer
from limner.text.vocab import SPECIAL_TOKENS, WORD_START

WORDS = 200
GROUPS = len(plots.COLOURS)
NEIGHBOURS = 8
FEWEST = 2 * GROUPS
"""With fewer words than this there is nothing to see."""
PERPLEXITY = 20.0
"""Of t-SNE: about how many neighbours a word keeps near itself."""
DOTS_PER_INCH = 200

Method = Literal["pca", "tsne"]
TITLES: dict[Method, str] = {"tsne": "Words by t-SNE", "pca": "Words by PCA"}


class Neighbours(NamedTuple):
    """The words whose vectors are nearest to that of one word."""

    word: str
    group: int
    nearest: tuple[str, ...]
    """The nearest first."""


class WordMap(NamedTuple):
    """Frequent words in the plane."""

    words: tuple[str, ...]
    """(N), the most frequent first."""
    groups: tuple[int, ...]
    """(N), by k-means among the full vectors; numbered by their most frequent words."""
    positions: dict[Method, NDArray[np.float64]]
    """(N, 2) by each method."""
    neighbours: tuple[Neighbours, ...]
    """Of the most frequent and of the most central word of each group, among the whole vocabulary."""


def map_words(checkpoint: TrainedModel, *, count: int = WORDS, seed: int = 0) -> WordMap:
    """Place a model's most frequent words in the plane, by PCA and by t-SNE (van der Maaten and Hinton, 2008).

    Args:
        checkpoint: a model that has word vectors.
        count: at most so many words.
        seed: of t-SNE and of the k-means that makes the groups.

    Raises:
        MissingExtraError: scikit-learn is not installed.
        SettingsError: the model has no word vectors, or not enough words to draw.
    """
    model = checkpoint.model
    if not isinstance(model, WordEmbeddingModel):
        raise SettingsError(f"a model '{checkpoint.recipe.model.name}' has no word vectors")
    labels = _labels(checkpoint.tokenizer, count)
    if len(labels) < FEWEST:
        raise SettingsError(f"{len(labels)} words of letters in the vocabulary: a map needs {FEWEST} or more")
    with torch.inference_mode():
        vectors = model.word_vectors()[list(labels)].double().cpu().numpy()
    groups = _groups(vectors, seed)
    rows = list(labels)
    return WordMap(
        words=tuple(labels.values()),
        groups=tuple(groups),
        positions={"pca": _by_pca(vectors), "tsne": _by_tsne(vectors, seed)},
        neighbours=tuple(
            _neighbours(checkpoint, rows[place], groups[place]) for place in _telling(vectors, np.array(groups))
        ),
    )


def save_word_map(run: Path, out: Path, *, method: Method = "tsne", count: int = WORDS, seed: int = 0) -> Path:
    """Draw the map of a trained model's words into a file.

    Args:
        run: of a model that has word vectors.
        out: the file to write, .png or .svg; an older one is replaced.
        method: 'tsne' keeps neighbours together, 'pca' keeps large distances.
        count: at most so many words.
        seed: as of `map_words`.

    Returns:
        `out`.

    Raises:
        MissingExtraError, SettingsError: as of `map_words`, or `out` has another ending.
        RunError: the folder holds no whole model, or the file cannot be written.
    """
    if out.suffix.lower() not in (".png", ".svg"):
        raise SettingsError(f"{out}: a map of words is written as .png or .svg; end the name with one of these")
    drawn = map_words(load_trained_model(run), count=count, seed=seed)
    figure = plots.word_map(TITLES[method], drawn.words, drawn.positions[method], drawn.groups)
    with atomic_write(out) as beside:
        figure.savefig(beside, format=out.suffix[1:].lower(), dpi=DOTS_PER_INCH, facecolor="white")
    return out


def _labels(tokenizer: Tokenizer, count: int) -> dict[int, str]:
    """Row and spelling of the most frequent words; of subwords, the earliest merged that begin a word.

    Punctuation and numbers are left out, and so are words under three bytes: 'a', 'of' and 'in' would sit in the
    middle of the map, while a short word of Chinese, three bytes a sign, says as much as a long one elsewhere.
    """
    start = WORD_START if tokenizer.settings.level == "bpe" else ""
    spelt = (
        (row, entry.removeprefix(start))
        for row, entry in enumerate(tokenizer.entries)
        if row >= len(SPECIAL_TOKENS) and entry.startswith(start)
    )
    chosen = [(row, word) for row, word in spelt if word.isalpha() and len(word.encode()) >= 3]
    return dict(chosen[:count])


def _groups(vectors: NDArray[np.float64], seed: int) -> list[int]:
    """Group of each word, numbered in the order of first appearance."""
    kmeans = _sklearn("cluster").KMeans(GROUPS, n_init=10, random_state=seed)
    found: list[int] = kmeans.fit_predict(vectors).tolist()
    numbers = {group: number for number, group in enumerate(dict.fromkeys(found))}
    return [numbers[group] for group in found]


def _telling(vectors: NDArray[np.float64], groups: NDArray[np.int_]) -> list[int]:
    """The places of the most frequent word of each group, which all know, and of its most central, which tells most."""
    places: list[int] = []
    for group in range(groups.max() + 1):
        own = np.flatnonzero(groups == group)
        distances = np.linalg.norm(vectors[own] - vectors[own].mean(0), axis=1)
        places += dict.fromkeys((int(own[0]), int(own[distances.argmin()])))
    return places


def _by_pca(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    positions: NDArray[np.float64] = _sklearn("decomposition").PCA(2, svd_solver="full").fit_transform(vectors)
    return positions


def _by_tsne(vectors: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    # Some hundred words need no approximation.
    perplexity = min(PERPLEXITY, (len(vectors) - 1) / 3)
    tsne = _sklearn("manifold").TSNE(2, perplexity=perplexity, init="pca", method="exact", random_state=seed)
    return _by_pca(tsne.fit_transform(vectors).astype(np.float64))  # turned, so that the map lies on its long side


def _neighbours(checkpoint: TrainedModel, row: int, group: int) -> Neighbours:
    word = checkpoint.tokenizer.entries[row]
    nearest = nearest_words(checkpoint, word, NEIGHBOURS)
    spelt = tuple(other.removeprefix(WORD_START) for other, _ in nearest)
    return Neighbours(word.removeprefix(WORD_START), group, spelt)


def _sklearn(name: str) -> Any:  # noqa: ANN401  (a module without types)
    try:
        return import_module(f"sklearn.{name}")
    except ImportError:
        raise MissingExtraError("the map of words", "words") from None

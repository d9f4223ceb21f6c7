"""Maps of word vectors: projections of the most frequent words to the plane, with clusters and nearest neighbours.

Requires scikit-learn (extra `words`).
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from limner.errors import MissingExtraError, SettingsError
from limner.inference.word_vectors import WITHOUT_VECTORS, nearest_words
from limner.models.capabilities import WordEmbeddingModel
from limner.report import plots
from limner.report.word_plot import plot_words
from limner.runs.trained_model import TrainedModel, load_trained_model
from limner.text.tokenizer import Tokenizer
from limner.text.vocab import SPECIAL_TOKENS, WORD_START

WORDS = 200
"""Number of words of a map."""
CLUSTERS = len(plots.COLOURS)
"""Number of clusters of k-means."""
NEIGHBOURS = 8
"""Number of nearest neighbours of a word."""
MIN_WORDS = 2 * CLUSTERS
"""Minimum number of words of a map."""
PERPLEXITY = 20.0
"""Perplexity of t-SNE: approximate number of neighbours that are kept close to each word."""
DOTS_PER_INCH = 200

Method = Literal["pca", "tsne"]
TITLES: dict[Method, str] = {"tsne": "Words by t-SNE", "pca": "Words by PCA"}


class Neighbours(NamedTuple):
    """The nearest neighbours of a word."""

    word: str
    cluster: int
    nearest: tuple[str, ...]
    """Nearest words, nearest first."""


class WordMap(NamedTuple):
    """Projections of word vectors to the plane."""

    words: tuple[str, ...]
    """N words, most frequent first."""
    clusters: tuple[int, ...]
    """Cluster of each word by k-means on the word vectors (N), numbered in the order of their most frequent words."""
    positions: dict[Method, NDArray[np.float64]]
    """Coordinates of each word (N, 2), by projection method."""
    neighbours: tuple[Neighbours, ...]
    """Nearest neighbours, in the whole vocabulary, of the most frequent and the most central word of each cluster."""


def map_words(model: TrainedModel, *, count: int = WORDS, seed: int = 0) -> WordMap:
    """Project the word vectors of a model's most frequent words by PCA and t-SNE (van der Maaten and Hinton, 2008).

    Args:
        model: a model with word vectors.
        count: maximum number of words.
        seed: random seed of t-SNE and k-means.

    Raises:
        MissingExtraError: scikit-learn is not installed.
        SettingsError: the model has no word vectors, or too few words.
    """
    network = model.model
    if not isinstance(network, WordEmbeddingModel):
        raise SettingsError(f"model '{model.recipe.model.name}' has no word vectors; {WITHOUT_VECTORS}")
    labels = _labels(model.tokenizer, count)
    if len(labels) < MIN_WORDS:
        raise SettingsError(f"map of words: expected {MIN_WORDS} or more words of letters, got {len(labels)}")
    token_ids = list(labels)
    with torch.inference_mode():
        vectors = network.word_vectors()[token_ids].double().cpu().numpy()
    clusters = _clusters(vectors, seed)
    return WordMap(
        words=tuple(labels.values()),
        clusters=tuple(clusters),
        positions={"pca": _project_pca(vectors), "tsne": _project_tsne(vectors, seed)},
        neighbours=tuple(
            _neighbours(model, token_ids[row], clusters[row]) for row in _representatives(vectors, np.array(clusters))
        ),
    )


def save_word_map(run: Path, out: Path, *, method: Method = "tsne", count: int = WORDS, seed: int = 0) -> Path:
    """Plot a map of a model's words to a file.

    Args:
        run: run directory of a model with word vectors.
        out: output file, .png or .svg; an existing file is replaced.
        method: projection: 'tsne' preserves neighbourhoods, 'pca' preserves large distances.
        count: maximum number of words.
        seed: random seed of t-SNE and k-means.

    Returns:
        `out`.

    Raises:
        MissingExtraError: scikit-learn is not installed.
        SettingsError: the model has no word vectors or too few words, or `out` has another suffix.
        RunError: the run directory has no complete model, or the file cannot be written.
    """
    plots.require_plot_suffix(out)
    word_map = map_words(load_trained_model(run), count=count, seed=seed)
    figure = plot_words(TITLES[method], word_map.words, word_map.positions[method], word_map.clusters)
    return plots.save_plot(figure, out)


def _labels(tokenizer: Tokenizer, count: int) -> dict[int, str]:
    """Token id and spelling of the most frequent words; of subwords, those merged first that start a word.

    Punctuation, numbers and words of less than three bytes in UTF-8 are left out: function words such as 'a' and 'of'
    would cover the centre of the map, whereas a single Chinese character has three bytes.
    """
    spellings = (
        (row, tokenizer.spelling(row))
        for row in range(len(SPECIAL_TOKENS), len(tokenizer))
        if tokenizer.starts_word(row)
    )
    chosen = [(row, word) for row, word in spellings if word.isalpha() and len(word.encode()) >= 3]
    return dict(chosen[:count])


def _clusters(vectors: NDArray[np.float64], seed: int) -> list[int]:
    """Cluster of each word, numbered in the order of first appearance."""
    kmeans = _sklearn("cluster").KMeans(CLUSTERS, n_init=10, random_state=seed)
    clusters: list[int] = kmeans.fit_predict(vectors).tolist()
    numbers = {cluster: number for number, cluster in enumerate(dict.fromkeys(clusters))}
    return [numbers[cluster] for cluster in clusters]


def _representatives(vectors: NDArray[np.float64], clusters: NDArray[np.int_]) -> list[int]:
    """Rows of the most frequent and of the most central word of each cluster."""
    rows: list[int] = []
    for cluster in range(clusters.max() + 1):
        members = np.flatnonzero(clusters == cluster)
        distances = np.linalg.norm(vectors[members] - vectors[members].mean(0), axis=1)
        rows += dict.fromkeys((int(members[0]), int(members[distances.argmin()])))
    return rows


def _project_pca(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    positions: NDArray[np.float64] = _sklearn("decomposition").PCA(2, svd_solver="full").fit_transform(vectors)
    return positions


def _project_tsne(vectors: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    perplexity = min(PERPLEXITY, (len(vectors) - 1) / 3)
    tsne = _sklearn("manifold").TSNE(2, perplexity=perplexity, init="pca", method="exact", random_state=seed)
    return _project_pca(tsne.fit_transform(vectors).astype(np.float64))  # rotated, so that the long side is horizontal


def _neighbours(model: TrainedModel, token_id: int, cluster: int) -> Neighbours:
    word = model.tokenizer.entries[token_id]
    nearest = tuple(other.removeprefix(WORD_START) for other, _ in nearest_words(model, word, NEIGHBOURS))
    return Neighbours(word.removeprefix(WORD_START), cluster, nearest)


def _sklearn(name: str) -> Any:  # noqa: ANN401  (a module without types)
    try:
        return import_module(f"sklearn.{name}")
    except ImportError:
        raise MissingExtraError("the map of words", "words") from None

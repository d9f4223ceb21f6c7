"""Exact search with a proof by the tangents of MLBL-B: images scored, times of queries, and growth with the collection.

LIMNER_SEARCH_COLLECTION and LIMNER_SEARCH_RUN name a collection with features and an MLBL-B trained on them; without
them the features are random, of 40 directions, and the model is untrained, so that all scores are nearly equal and
proofs are hard. LIMNER_SEARCH_IMAGES are the sizes of the collections that are made of variations of the features
(`variations.py`; default 10000,100000,1000000), LIMNER_SEARCH_QUERIES is the number of test sentences
(default 60), and LIMNER_SEARCH_EXHAUSTIVE the number of them whose results are compared with scores of all images
(default 20).
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from limner.data.examples import Example, ImageFeatures, collate, collate_features
from limner.layers.all_pairs import PrefixTree, additive_log_probs
from limner.models.log_bilinear import LBL, LBLSettings
from limner.models.protocols import ModelInputs
from limner.retrieval.fast import affine_terms
from limner.retrieval.index.protocol import BestImages, SearchOptions
from limner.retrieval.index.tangents import TangentIndex, search_cells, tangent_bounds, write_cells
from measuring import report
from variations import FeatureVariations

CELLS = (1, 16, 64, 256)
RESULTS = 10
BLOCK = 8192


class Searched(NamedTuple):
    """What the benchmark searches."""

    model: LBL
    features: NDArray[np.float16]  # (N, D)
    sentences: list[list[int]]
    origin: str


def search() -> None:
    """Measure searches of the real images, and of collections of their variations."""
    searched = _load()
    report("search_images", len(searched.features), "images", "-", features=searched.origin)
    with tempfile.TemporaryDirectory() as scratch:
        _measure_cells(searched, Path(scratch))
        variations = FeatureVariations(searched.features)
        for count in _sizes():
            _measure_size(searched, variations, count, Path(scratch))


def _sizes() -> list[int]:
    return sorted(int(size) for size in os.environ.get("LIMNER_SEARCH_IMAGES", "10000,100000,1000000").split(","))


def _load() -> Searched:
    """Read the features and the test sentences of the collection that is named, or make some."""
    count = int(os.environ.get("LIMNER_SEARCH_QUERIES", "60"))
    run, collection = (os.environ.get(f"LIMNER_SEARCH_{name}") for name in ("RUN", "COLLECTION"))
    if not run or not collection:
        random = np.random.default_rng(0)
        features = np.maximum(random.normal(size=(7000, 40)) @ random.normal(size=(40, 1280)), 0).astype(np.float16)
        torch.manual_seed(0)
        model = LBL(LBLSettings(word_dim=200, init_std=0.3), ModelInputs(2800, {"pooled": (1280,)})).eval()
        return Searched(model, features, random.integers(4, 2800, (count, 10)).tolist(), "random, untrained model")
    from limner.data.collection import Collection
    from limner.inference.features import open_features
    from limner.runs.trained_model import load_trained_model

    trained, opened = load_trained_model(run), Collection.open(collection)
    stored = open_features(trained, opened)
    assert isinstance(trained.model, LBL), "LIMNER_SEARCH_RUN names an MLBL-B"
    assert stored is not None, "the model uses features"
    (table,) = stored.tables
    texts = [text for item in opened.items("test") for text in item.texts(trained.recipe.data.lang)]
    sentences = [trained.tokenizer.encode(text) for text in Random(1).sample(texts, count)]
    return Searched(trained.model, table.take(table.ids()), sentences, str(table.spec))


def _measure_cells(searched: Searched, scratch: Path) -> None:
    """Report how many real images are scored, by the tangents alone and in the search, for several numbers of cells."""
    terms = np.concatenate(list(_terms(searched.model, [searched.features])))
    violated, pairs = 0, 0
    all_scores: list[NDArray[np.float64]] = []
    for cells in CELLS:
        folder = scratch / f"cells{cells}"
        folder.mkdir()
        write_cells(folder, terms, searched.model.words.detach().double().numpy(), cells)
        index = TangentIndex(folder, searched.model)
        rows = np.arange(len(terms))
        by_tangents, scored, same = [], [], 0
        for number, tokens in enumerate(searched.sentences):
            score = index.score_of(tokens)
            if number == len(all_scores):
                all_scores.append(score.scores(terms))
            scores = all_scores[number][index.cells.order]
            bounds = tangent_bounds(index.cells, rows, *score.tangents(index.cells.points))
            violated, pairs = violated + int((bounds < scores).sum()), pairs + len(scores)
            by_tangents.append(int((bounds >= np.partition(scores, -RESULTS)[-RESULTS]).sum()))
            found = search_cells(index.cells, score, RESULTS, SearchOptions())
            scored.append(found.scored)
            expected = np.lexsort((index.cells.order, -scores.round(9)))[:RESULTS]
            same += found.exact and np.array_equal(found.rows, expected)
        details = {"cells": cells, "images": len(terms), "sentences": len(scored)}
        report(
            "search_tangents_only",
            float(np.median(by_tangents)),
            "images scored",
            "-",
            most=max(by_tangents),
            **details,
        )
        share = float(np.median(scored)) / len(terms)
        report(
            "search_scored", float(np.median(scored)), "images scored", "-", most=max(scored), share=share, **details
        )
        report("search_equal", same / len(scored), "of rankings equal all scores", "1", **details)
    report("search_violated", violated, f"violated bounds of {pairs:,}", "0")


def _measure_size(searched: Searched, variations: FeatureVariations, count: int, scratch: Path) -> None:
    """Report the time and the memory of an index of some variations, and the times of queries."""
    folder = scratch / f"images{count}"
    folder.mkdir()
    started, cpu = time.perf_counter(), time.process_time()
    terms = np.lib.format.open_memmap(folder / "unordered.npy", "w+", np.float32, (count, searched.model.word_dim))
    parts = (variations.rows(begin, min(begin + BLOCK, count)) for begin in range(0, count, BLOCK))
    begin = 0
    for values in _terms(searched.model, parts):
        terms[begin : begin + len(values)] = values
        begin += len(values)
    made = time.process_time() - cpu
    write_cells(folder, terms, searched.model.words.detach().double().numpy())
    seconds, used = time.perf_counter() - started, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    sizes = {"images": count, "cpu_seconds": round(used, 1), "of_features_and_terms": round(made, 1)}
    report("search_build", seconds, "s", "<= 900 for 1,000,000", peak_gib=round(peak, 2), **sizes)
    index = TangentIndex(folder, searched.model)
    found = _measure_queries(searched, index)
    scored = [one.scored for one in found]
    details = {"images": count, "most": max(scored), "share": float(np.median(scored)) / count}
    report(
        "search_scored",
        float(np.median(scored)),
        "images scored",
        "-",
        proven=all(one.exact for one in found),
        **details,
    )
    _compare(searched, index, terms, found)


def _measure_queries(searched: Searched, index: TangentIndex) -> list[BestImages]:
    """Report the times of all queries, after one pass that reads the files; return their results."""
    wall, cpu, found = [], [], []
    for timed in (False, True):
        for tokens in searched.sentences:
            begin, used = time.perf_counter(), time.process_time()
            result = search_cells(index.cells, index.score_of(tokens), RESULTS, SearchOptions())
            if timed:
                wall.append(1000 * (time.perf_counter() - begin))
                cpu.append(1000 * (time.process_time() - used))
                found.append(result)
    for name, share, target in (("p50", 0.5, "<= 50"), ("p95", 0.95, "<= 100")):
        used = round(float(np.quantile(cpu, share)), 1)
        report(f"search_query_{name}", float(np.quantile(wall, share)), "ms", target, cpu_ms=used, images=len(index))
    return found


def _compare(searched: Searched, index: TangentIndex, terms: NDArray[np.float32], found: Sequence[BestImages]) -> None:
    """Report the time of the scores of all images by the all-pairs path, and the recall against them."""
    count = int(os.environ.get("LIMNER_SEARCH_EXHAUSTIVE", "20"))
    started, cpu = time.perf_counter(), time.process_time()
    _all_scores(searched, terms, searched.sentences[:1])
    seconds, used = time.perf_counter() - started, time.process_time() - cpu
    report("search_exhaustive", seconds, "s for one query", "-", cpu_seconds=round(used, 2), images=len(terms))
    best = [
        set(np.argsort(-row)[:RESULTS].tolist()) for row in _all_scores(searched, terms, searched.sentences[:count])
    ]
    recalls = [
        len(expected & set(index.cells.order[one.rows].tolist())) / RESULTS
        for expected, one in zip(best, found, strict=False)
    ]
    report(
        "search_recall",
        float(np.mean(recalls)),
        f"recall@{RESULTS}",
        ">= 0.99",
        sentences=len(recalls),
        images=len(terms),
    )


def _all_scores(searched: Searched, terms: NDArray[np.float32], sentences: Sequence[list[int]]) -> NDArray[np.float32]:
    """Compute the scores of all images for some sentences, (S, N), in float32 as a search without an index."""
    model = searched.model
    batch = collate([Example("", tuple(tokens)) for tokens in sentences])
    tree = PrefixTree.of(batch)
    with torch.inference_mode():
        prefixes = torch.stack([affine_terms(model, tokens).prefixes for tokens in batch.target_in])
        language = prefixes[tree.row, tree.column]
        parts = [
            additive_log_probs(
                language, torch.from_numpy(terms[begin : begin + BLOCK]), model.words, model.bias, tree, 1 << 26
            ).numpy()
            for begin in range(0, len(terms), BLOCK)
        ]
    return np.concatenate(parts, axis=1)


def _terms(model: LBL, parts: Any) -> Iterator[NDArray[np.float32]]:  # noqa: ANN401  (any iterable of arrays)
    """Compute the image terms of features, part by part."""
    for values in parts:
        with torch.inference_mode():
            yield model.image_terms(_pooled(values)).bias.numpy()


def _pooled(values: NDArray[np.float16]) -> ImageFeatures:
    return collate_features([{"pooled": value} for value in values])

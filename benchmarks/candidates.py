"""Candidates of an index: the share of the best images among them, and the time of a search as collections grow.

    LIMNER_RUN=RUN LIMNER_COLLECTION=DIR make bench ONLY=candidates
    LIMNER_RUN=RUN LIMNER_COLLECTION=DIR make bench ONLY=expansion_search

Queries are one sentence of each of `LIMNER_QUERIES` (100) random images of the split `LIMNER_SPLIT` (test), and all
images of the collection are searched, by the second command with `LIMNER_CANDIDATES` (200) candidates.
`LIMNER_RETRIEVER` names a two-tower model, for candidates by its vectors. Without a run there is nothing to measure.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from limner.data.collection import Collection
from limner.data.examples import Item
from limner.features.store import FeatureStore
from limner.inference.features import open_features
from limner.retrieval.all_pairs import pair_log_probs
from limner.retrieval.index.embeddings import EmbeddingIndex, embeddings_kind
from limner.retrieval.index.estimated import EXPANSIONS, MAX_CELLS, ExpansionIndex, ImageCodes, write_cells
from limner.retrieval.index.protocol import CANDIDATES, IndexedImages
from limner.runs.trained_model import TrainedModel, load_trained_model
from measuring import report

COUNTS = (50, 100, 200, 400, 800)
BEST = 10
SIZES = tuple(int(size) for size in os.environ.get("LIMNER_SIZES", "10000,100000,1000000").split(","))
SCORED = int(os.environ.get("LIMNER_CANDIDATES", str(CANDIDATES)))
VARIATION = 0.3
"""Standard deviation of the variations of real codes, relative to the standard deviation of each value of the codes."""


class Task:
    """A run, all images of a collection with features, and sentences as queries."""

    def __init__(self, run: Path, collection: Path) -> None:
        self.model: TrainedModel = load_trained_model(run)
        self.collection = Collection.open(collection)
        features = open_features(self.model, self.collection)
        assert features is not None, "the model uses images"
        self.features: FeatureStore = features
        self.items: list[Item] = [one for one in self.collection.items() if one.media_path and features.covers(one)]
        lang, split = self.model.recipe.data.lang, os.environ.get("LIMNER_SPLIT", "test")
        random = np.random.default_rng(14)
        own = [item for item in self.items if item.split == split and list(item.texts(lang))]
        rows = random.permutation(len(own))[: int(os.environ.get("LIMNER_QUERIES", "100"))]
        texts = [list(own[row].texts(lang)) for row in rows]
        self.queries = [one[int(random.integers(len(one)))] for one in texts]
        self.data = f"{len(self.queries)} sentences of {split}, {run.name}"

    def images(self) -> IndexedImages:
        """Return all images, as a new index reads them."""
        return IndexedImages(self.items, np.arange(len(self.items)), self.features)

    def tokens(self, query: str) -> list[int]:
        """Return the token ids of a query."""
        return self.model.tokenizer.encode(query)


def task() -> Task | None:
    """Open the run and the collection of the environment; None without them."""
    run, collection = os.environ.get("LIMNER_RUN"), os.environ.get("LIMNER_COLLECTION")
    return Task(Path(run), Path(collection)) if run and collection else None


def candidates() -> None:
    """Measure the share of the exact ten best images among candidates, and the time of candidates and of all scores."""
    work = task()
    if work is None:
        return
    retriever = os.environ.get("LIMNER_RETRIEVER")
    tower = load_trained_model(Path(retriever)) if retriever else None
    images = work.images()
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        if tower is None:
            order = EXPANSIONS.build(Path(folder), work.model, images, None)
            index: ExpansionIndex | EmbeddingIndex = ExpansionIndex.open(Path(folder), work.model)
        else:
            kind = embeddings_kind(tower, open_features(tower, work.collection))
            order = kind.build(Path(folder), work.model, images, None)
            index = EmbeddingIndex.open(Path(folder), work.model)
        report(
            "index_build", time.process_time() - began, "s of processor time", "-", images=len(order), data=work.data
        )
        found, seconds = [], time.process_time()
        for query in work.queries:
            sentence = query if isinstance(index, EmbeddingIndex) else work.tokens(query)
            found.append([order[index.candidates(sentence, count)] for count in COUNTS])
        seconds = (time.process_time() - seconds) / (len(work.queries) * len(COUNTS))
    report("candidates_time", 1000 * seconds, "ms of processor time a query", "-", data=work.data)
    began = time.process_time()
    scores = pair_log_probs(
        work.model.model, [work.tokens(query) for query in work.queries], work.items, work.features
    ).numpy()
    per_query = 1000 * (time.process_time() - began) / len(work.queries)
    report("exhaustive_time", per_query, "ms of processor time a query", "-", images=len(work.items), data=work.data)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :BEST]
    for column, count in enumerate(COUNTS):
        share = np.mean([np.isin(own, rows[column]).mean() for own, rows in zip(best, found, strict=True)])
        target = ">= 0.99" if count == CANDIDATES else "-"
        report("candidates_recall", share, f"share of the {BEST} best in {count}", target, data=work.data)


def expansion_search() -> None:
    """Measure the time of a search by expansions in collections of several sizes, stage by stage.

    The codes are those of real images and random variations of them. Scores of codes are exact for models without
    attention. Recall is relative to the scores of the codes of all images, for `LIMNER_EXHAUSTIVE` (10) of the queries.
    """
    work = task()
    if work is None:
        return
    coder = ImageCodes.from_model(work.model)
    real = np.concatenate([coder.encode(image).numpy() for image in work.images().batches()])
    for size in SIZES:
        with tempfile.TemporaryDirectory() as scratch:
            began = time.process_time()
            _write_variations(Path(scratch), real, size)
            report("expansion_build", time.process_time() - began, "s of processor time", "-", images=size)
            index = ExpansionIndex.read(Path(scratch), coder, torch.device("cpu"))
            _measure_searches(work, index, coder)


def _measure_searches(work: Task, index: ExpansionIndex, coder: ImageCodes) -> None:
    """Report the times of all queries after one pass that reads the files, and the recall of some of them."""
    stages: dict[str, list[float]] = {"expand": [], "candidates": [], "search": []}
    walls, found = [], []
    centroids = torch.from_numpy(index.codes[:: max(1, len(index) // MAX_CELLS)][:MAX_CELLS].copy())
    for timed in (False, True):
        for query in work.queries:
            tokens = work.tokens(query)
            began, marks = time.perf_counter(), [time.process_time()]
            rows = index.candidates(tokens, SCORED)
            marks.append(time.process_time())
            scores = index.code_scores(tokens, rows)
            marks.append(time.process_time())
            wall = 1000 * (time.perf_counter() - began)
            coder.expand(tokens, centroids)
            marks.append(time.process_time())
            if timed:
                walls.append(wall)
                found.append(rows[np.argsort(-scores, kind="stable")[:BEST]])
                for name, seconds in zip(
                    stages, (marks[3] - marks[2], marks[1] - marks[0], marks[2] - marks[0]), strict=True
                ):
                    stages[name].append(1000 * seconds)
    for name, share, target in (("p50", 50, "<= 50"), ("p95", 95, "<= 100")):
        used = {stage: round(float(np.percentile(values, share)), 1) for stage, values in stages.items()}
        report(
            f"expansion_search_{name}", float(np.percentile(walls, share)), "ms", target, images=len(index), cpu_ms=used
        )
    recalls, began = [], time.process_time()
    exhaustive = int(os.environ.get("LIMNER_EXHAUSTIVE", "10"))
    for query, rows in zip(work.queries[:exhaustive], found, strict=False):
        parts = np.array_split(np.arange(len(index)), 1 + len(index) // 8192)
        scores = np.concatenate([index.code_scores(work.tokens(query), part) for part in parts])
        recalls.append(np.isin(np.argsort(-scores, kind="stable")[:BEST], rows).mean())
    if recalls:
        seconds = (time.process_time() - began) / len(recalls)
        report("expansion_recall", np.mean(recalls), f"recall@{BEST} in {SCORED}", ">= 0.99", images=len(index))
        report("expansion_exhaustive", seconds, "s of processor time a query", "-", images=len(index))


def _write_variations(folder: Path, real: NDArray[np.float32], size: int) -> None:
    """Write the files of an index of real codes and random variations of them."""
    random = np.random.default_rng(size)
    unordered = folder / "unordered.npy"
    codes = np.lib.format.open_memmap(unordered, "w+", np.float32, (size, real.shape[1]))
    spread = (VARIATION * real.std(0)).astype(np.float32)
    for begin in range(0, size, len(real)):
        block = codes[begin : begin + len(real)]
        block[:] = real[: len(block)]
        if begin:
            block += spread * random.standard_normal(block.shape, np.float32)
    write_cells(folder, codes)
    unordered.unlink()

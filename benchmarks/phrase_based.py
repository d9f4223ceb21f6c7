"""Measure the search of phrase-based translation: 29,000 sentence pairs of Multi30k, or as many of drawn words."""

from __future__ import annotations

import gzip
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from limner.models.phrase_based import ParallelCorpus, PhraseBased, PhraseBasedSettings, TuningSettings
from limner.models.protocols import ModelInputs
from limner.text.tokenizer import Tokenizer
from limner.text.words import TextSettings
from measuring import real_data, report

PAIRS, SENTENCES, BEAM = 29_000, 1000, 300


class _Pairs(NamedTuple):
    """Sentences of both languages, the last ones to be translated."""

    sources: list[str]
    targets: list[str]
    origin: str


def phrase_based() -> None:
    """Measure the estimation of the tables, and the search on all cores, after its compilation."""
    pairs = _read_pairs()
    source, target = (Tokenizer.train(part[:PAIRS], TextSettings(lowercase=False)) for part in pairs[:2])
    sources, targets = [source.encode(one) for one in pairs.sources], [target.encode(one) for one in pairs.targets]
    kept = [row for row in range(len(sources)) if sources[row] and targets[row]]
    training, held_out = kept[:-SENTENCES], [sources[row] for row in kept[-SENTENCES:]]
    corpus = ParallelCorpus(
        [sources[row] for row in training],
        [targets[row] for row in training],
        [targets[row] for row in training],
        [],
        [],
        [],
        target.entries,
        1,
    )
    settings = PhraseBasedSettings(tuning=TuningSettings(method="none"))
    model = PhraseBased(settings, ModelInputs(len(target), {}, len(source)))
    started, used = time.perf_counter(), time.process_time()
    facts = model.fit_pairs(corpus, BEAM)
    seconds, processor = time.perf_counter() - started, time.process_time() - used
    details = {"pairs": f"{len(training)} ({pairs.origin})", "phrase_pairs": facts["phrase_pairs"]}
    report("phrase_based_training", seconds, "s", "-", processor_seconds=round(processor, 1), **details)
    copies = [[target.token_id(piece) for piece in source.pieces(pairs.sources[row])] for row in kept[-SENTENCES:]]
    model.search_translations(held_out[:4], copies[:4], 1, BEAM)
    for n_best, goal in ((1, ">= 20"), (100, "-")):
        started, used = time.perf_counter(), time.process_time()
        model.search_translations(held_out, copies, n_best, BEAM)
        seconds, processor = time.perf_counter() - started, time.process_time() - used
        report(
            f"phrase_based_search_{n_best}_best",
            len(held_out) / seconds,
            f"sentences/s, stacks of {BEAM}",
            goal,
            processor_ms_a_sentence=round(1000 * processor / len(held_out), 2),
            **details,
        )


def _read_pairs() -> _Pairs:
    """Read English and German sentences of Multi30k, or draw words by Zipf's law, whose translation is reversed."""
    data = real_data()
    folder = None if data is None else data / "multi30k" / "task1"
    if folder is not None and folder.is_dir():
        sources, targets = (
            [line for split in ("train", "val") for line in _lines(folder / f"{split}.{lang}.gz")]
            for lang in ("en", "de")
        )
        return _Pairs(sources, targets, "Multi30k")
    random = np.random.default_rng(0)
    shares = 1 / np.arange(1, 10_000)
    drawn = random.choice(len(shares), (PAIRS + SENTENCES, 12), p=shares / shares.sum())
    sources = [" ".join(f"w{word}" for word in row) for row in drawn]
    return _Pairs(sources, [" ".join(reversed(one.split())) for one in sources], "drawn by Zipf's law")


def _lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [line.rstrip("\n") for line in file]

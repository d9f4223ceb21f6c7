"""Compare Limner with programs that do a part of its work, each side by its own program, in alternation.

    make bench ONLY=peers
    LIMNER_PEERS_ROUNDS=5 LIMNER_PEERS_ONLY=joeynmt make bench ONLY=peers

The peers are installed into an environment in `LIMNER_PEERS` (~/.cache/limner/peers), about 1.5 GB, which is kept. Both
sides have one thread and processes of their own; rates are per second of processor time, and the ratio of a line is the
median over the rounds. A peer that cannot be installed or run is a line with the reason.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import venv
from collections import Counter
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from measuring import real_data, report
from peer_programs import BEAM, LENGTH, NEIGHBOURS, WORDS, read

ROUNDS = int(os.environ.get("LIMNER_PEERS_ROUNDS", "3"))
PAIRS = int(os.environ.get("LIMNER_PEERS_PAIRS", "1280"))
"""Sentence pairs of an epoch; the second of two epochs is measured."""
ONLY = os.environ.get("LIMNER_PEERS_ONLY", "")
"""Part of the names of the programs to compare, such as `joeynmt` or `faiss`."""
TRANSLATED, SCORED, VECTORS, DIM, QUERIES, SEED = 256, 1000, 100_000, 256, 20, 1
"""Translated and scored sentences, vectors of a search and their size, queries, seed."""
CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
REQUIREMENTS = {
    "joeynmt": ("torch joeynmt==2.3.0 importlib_metadata",),
    "nmtpytorch": ("torch tqdm", "--no-deps nmtpytorch==4.0.0"),  # it asks for torch 1.0
    "sacrebleu": ("sacrebleu",),
    "pycocoevalcap": ("pycocoevalcap",),
    "kenlm-ex": ("kenlm-ex",),
    "faiss-cpu": ("faiss-cpu",),
    "usearch": ("usearch",),
}
"""Arguments of each `pip install` of a peer."""
JOEYNMT = """
name: peers
model_dir: {folder}/joeynmt
use_cuda: false
random_seed: {seed}
data:
  train: {folder}/train
  dev: {folder}/val
  test: {folder}/val
  dataset_type: plain
  src: {{lang: en, max_length: 80, level: word, voc_file: {folder}/words.en}}
  trg: {{lang: de, max_length: 80, level: word, voc_file: {folder}/words.de}}
testing: {{beam_size: {beam}, beam_alpha: 1.0, batch_size: 64, max_output_length: {length}}}
training: {{batch_size: 64, optimizer: adam, learning_rate: 0.001, scheduling: exponential, label_smoothing: 0.1,
  epochs: 2, clip_grad_norm: 1.0, validation_freq: 1000000, logging_freq: 1000, overwrite: true}}
model:
  encoder: {{type: recurrent, rnn_type: gru, hidden_size: 256, embeddings: {{embedding_dim: 256}}, dropout: 0.2}}
  decoder: {{type: recurrent, rnn_type: gru, hidden_size: 256, embeddings: {{embedding_dim: 256}}, dropout: 0.2,
    hidden_dropout: 0.2, init_hidden: bridge, input_feeding: true, attention: bahdanau}}
"""
NMTPYTORCH = """
[train]
model_type: NMT
max_epochs: 2
batch_size: 64
eval_freq: -1
checkpoint_freq: 0
optimizer: adam
lr: 0.001
gclip: 1
seed: {seed}
save_path: {folder}/nmtpytorch
[model]
direction: en:Text -> de:Text
emb_dim: 256
enc_dim: 256
dec_dim: 256
dropout_emb: 0.2
dropout_ctx: 0.2
dropout_out: 0.2
bucket_by: en
[data]
train_set: {{'en': '{folder}/train.en', 'de': '{folder}/train.de'}}
val_set: {{'en': '{folder}/val.en', 'de': '{folder}/val.de'}}
[vocabulary]
en: {folder}/words.en.json
de: {folder}/words.de.json
"""


def write_data(folder: Path) -> str:
    """Write what both sides read, and return the origin of the sentences: Multi30k, or words drawn by Zipf's law."""
    data, drawn = real_data(), random.Random(SEED)
    origin = "drawn by Zipf's law" if data is None else "Multi30k"
    for lang in ("en", "de"):
        if data is None:
            words = [f"{lang}{number}" for number in range(WORDS - 4)]
            shares = [1 / rank for rank in range(1, len(words) + 1)]
            lines = [" ".join(drawn.choices(words, shares, k=drawn.randint(8, 16))) for _ in range(PAIRS + TRANSLATED)]
        else:
            with gzip.open(data / "multi30k" / "task1" / f"train.{lang}.gz", "rt", encoding="utf-8") as file:
                lines = [" ".join(line.split()) for line in file]
            words = [word for word, _ in Counter(" ".join(lines).split()).most_common(WORDS - 4)]
        numbered = {word: number for number, word in enumerate(["<pad>", "<bos>", "<eos>", "<unk>", *words])}
        (folder / f"words.{lang}.json").write_text(json.dumps(numbered), encoding="utf-8")
        parts = {f"words.{lang}": words, f"train.{lang}": lines[:PAIRS], f"val.{lang}": lines[PAIRS:][:TRANSLATED]}
        for name, part in parts.items():
            (folder / name).write_text("".join(f"{line}\n" for line in part), encoding="utf-8")
    scored = lines[:SCORED]
    for name, kept in (("references", 1.0), ("hypotheses", 0.8), ("others", 0.78)):
        changed = [" ".join(w for w in text.split() if drawn.random() < kept) or text for text in scored]
        (folder / name).write_text("".join(f"{line}\n" for line in changed), encoding="utf-8")
    vectors = np.random.default_rng(SEED).standard_normal((VECTORS, DIM), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    np.save(folder / "vectors.npy", vectors)
    np.save(folder / "queries.npy", vectors[:QUERIES] + vectors[QUERIES : 2 * QUERIES])
    for name, text in (("joeynmt.yaml", JOEYNMT), ("nmtpytorch.conf", NMTPYTORCH)):
        (folder / name).write_text(text.format(folder=folder, seed=SEED, beam=BEAM, length=LENGTH), encoding="utf-8")
    return origin


def write_language_model(folder: Path) -> None:
    """Estimate a language model of order 3 and write it for both sides."""
    from limner.smt.arpa import write_arpa
    from limner.smt.language_model import estimate

    entries = ["<pad>", "<s>", "</s>", "<unk>", *read(folder, "words.de")]
    ids = {word: number for number, word in enumerate(entries)}
    sentences = [[ids.get(word, 3) for word in text.split()] for text in read(folder, "train.de")]
    write_arpa(estimate(sentences, 3, len(entries)), entries, folder / "lm.arpa")


def read_rate(pattern: str, log: str) -> float:
    """Return the rate that a program printed: the last match has a `rate`, or `seconds` and perhaps a `count`."""
    matches = [match.groupdict() for match in re.finditer(pattern, log, re.DOTALL)]
    if not matches:
        raise ValueError(f"expected '{pattern}' in what it prints, got: {log.strip()[-200:]}")
    figures = {name: float(value) for name, value in matches[-1].items()}
    return figures["rate"] if "rate" in figures else figures.get("count", 1.0) / figures["seconds"]


RESULT = r'"count": (?P<count>\d+), "seconds": (?P<seconds>[\d.e-]+)'
"""What programs print that have no log of their own."""


class Comparison(NamedTuple):
    """One discipline of a peer: its program, ours, what is counted, and the pattern of the figures in its log."""

    peer: str
    program: str
    ours: str
    unit: str
    pattern: str = RESULT


COMPARISONS = (
    Comparison(
        "joeynmt",
        "joeynmt-train",
        "training",
        "sentence pairs",
        r"num\. of seqs: (?P<count>\d+), num\. of tokens: \d+, (?P<seconds>[\d.]+)\[sec\]",
    ),
    Comparison(
        "joeynmt",
        "joeynmt-test",
        "translations",
        f"sentences, beam {BEAM}",
        r"Predicting (?P<count>\d+) example.*Generation took (?P<seconds>[\d.]+)\[sec\]",
    ),
    Comparison("nmtpytorch", "nmtpytorch-train", "training", "sentence pairs", r"\((?P<rate>\d+) samples/sec\)"),
    Comparison(
        "nmtpytorch",
        "nmtpytorch-translate",
        "translations",
        f"sentences, beam {BEAM}",
        r"Took [\d.]+ seconds, (?P<rate>\d+) sent/sec",
    ),
    Comparison("sacrebleu", "scores", "scores", "sentences: BLEU, chrF2, TER"),
    Comparison("sacrebleu", "significance", "significance", "trials of a paired test of BLEU"),
    Comparison("pycocoevalcap", "cider", "cider", "items: CIDEr-D, five references"),
    Comparison("pycocoevalcap", "rouge", "rouge", "items: ROUGE-L, five references"),
    Comparison("kenlm-ex", "language_model", "language_model", "words scored, order 3"),
    Comparison("faiss-cpu", "faiss", "vectors", f"queries among {VECTORS:,} vectors, {NEIGHBOURS} nearest"),
    Comparison("usearch", "usearch", "vectors", f"queries among {VECTORS:,} vectors, {NEIGHBOURS} nearest"),
)


def run_program(command: list[str]) -> str:
    """Run a program with one thread and return all it prints; RuntimeError with its last line if it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(
            (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()[-1]
        )
    return f"{done.stderr}\n{done.stdout}"


def install(peer: str, folder: Path) -> str:
    """Install a peer into the environment of a folder unless it is there, and return its version."""
    python, stamp = str(folder / "bin" / "python"), folder / f"{peer}.json"
    wanted = [list(REQUIREMENTS[peer]), CONSTRAINTS.read_text(encoding="utf-8")]
    if stamp.exists() and (stored := json.loads(stamp.read_text(encoding="utf-8")))["wanted"] == wanted:
        return str(stored["version"])
    if not Path(python).exists():
        venv.create(folder, with_pip=True)
    for arguments in REQUIREMENTS[peer]:
        run_program([python, "-m", "pip", "install", "-q", "-c", str(CONSTRAINTS), *arguments.split()])
    script = f"from importlib.metadata import version; print(version('{peer}'))"
    version = run_program([python, "-c", script]).strip()
    stamp.write_text(json.dumps({"wanted": wanted, "version": version}), encoding="utf-8")
    return version


def compare(comparison: Comparison, environment: Path, folder: Path, origin: str) -> None:
    """Run both sides in alternation and report the median ratio of their rates, or why there is none."""
    name = f"peers: {comparison.peer}, {comparison.program}"
    programs, python = str(Path(__file__).with_name("peer_programs.py")), str(environment / "bin" / "python")
    pairs = list[tuple[float, float]]()
    try:
        version = install(comparison.peer, environment)
        for _ in range(ROUNDS):
            theirs = run_program([python, programs, comparison.program, str(folder)])
            ours = run_program([sys.executable, programs, f"limner-{comparison.ours}", str(folder)])
            pairs.append((read_rate(RESULT, ours), read_rate(comparison.pattern, theirs)))
    except (RuntimeError, OSError, ValueError) as error:
        report(name, 0, "not measured", "-", reason=str(error)[:300])
        return
    ours_rate, theirs_rate = (float(f"{median(rates):.4g}") for rates in zip(*pairs, strict=True))
    details = {"rounds": ROUNDS, "version": version, "sentences": origin, "per_second_of": comparison.unit}
    ratio = median(ours / theirs for ours, theirs in pairs)
    report(name, ratio, "times the rate of the peer", ">= 1", limner=ours_rate, peer=theirs_rate, **details)


def peers() -> None:
    """Compare Limner with each peer in each discipline, and the search with `generate` of transformers."""
    environment = Path(os.environ.get("LIMNER_PEERS", Path.home() / ".cache" / "limner" / "peers"))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        origin = write_data(folder)
        write_language_model(folder)
        for comparison in COMPARISONS:
            if ONLY in comparison.program:
                compare(comparison, environment, folder, origin)
    if ONLY not in "generate":
        return
    log = run_program([sys.executable, str(Path(__file__).with_name("hub.py")), "--random"])
    theirs, ours = (read_rate(rf"{side}: (?P<seconds>[\d.]+) s of", log) for side in ("generate", "limner"))
    details = {"limner": ours, "peer": theirs, "per_second_of": "captions, BLIP-base, beam 3, 20 tokens"}
    report("peers: transformers, generate", ours / theirs, "times the rate of the peer", ">= 1", **details)

"""Programs that `peers.py` compares: of the peers, in an environment without Limner, and of Limner.

    python benchmarks/peer_programs.py PROGRAM FOLDER

`FOLDER` has the data that `peers.py` writes. joeynmt and nmtpytorch print their own logs, whose durations are processor
time here: they read `time.time`, which is replaced. The others print one JSON line: count and processor seconds.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

NOT_NEEDED = ("editdistance", "pkg_resources", "sklearn", "sklearn.metrics", "torchvision", "torchvision.models")
"""Modules that nmtpytorch imports for other models and metrics; their place is taken by empty ones."""
WORDS, BEAM, LENGTH, NEIGHBOURS, TRIALS = 6000, 6, 13, 200, 10_000
"""Size of each vocabulary, beam size, tokens of a translation, vectors of a result, trials of a test."""
RECIPE = [
    *("text.tokenise=space", "text.level=word", f"text.max_size={WORDS}", "training.epochs=2", "training.metrics=[]"),
    *("training.validate_every=2", "training.metric=perplexity", "training.ema_decay=0"),
]


def read(folder: Path, name: str) -> list[str]:
    """Read the lines of a file."""
    return (folder / name).read_text(encoding="utf-8").splitlines()


def groups(sentences: list[str]) -> list[list[str]]:
    """Return the five references of each item: consecutive sentences."""
    return [[sentences[(row + k) % len(sentences)] for k in range(5)] for row in range(len(sentences))]


def timed(count: int, run: Callable[[], object], *, warm_up: bool = True) -> None:
    """Print the processor time of a call as a JSON line, after another one, which imports and reads what is needed."""
    if warm_up:
        run()
    began = time.process_time()
    run()
    print(json.dumps({"count": count, "seconds": time.process_time() - began}))


def joeynmt(folder: Path, mode: str) -> None:
    """Train two epochs by `joeynmt train`, or translate by `joeynmt test`, which passes no minimum length on."""
    prediction: Any = importlib.import_module("joeynmt.prediction")
    prediction.search = partial(prediction.search, min_output_length=LENGTH)
    time.time = time.process_time
    sys.argv = ["joeynmt", mode, str(folder / "joeynmt.yaml"), *(["--skip-test"] if mode == "train" else [])]
    runpy.run_module("joeynmt", run_name="__main__", alter_sys=True)


def nmtpytorch(folder: Path, mode: str) -> None:
    """Train two epochs by `nmtpy train`, or translate by `nmtpy translate`.

    Two divisions of integers in its beam search become those of its time, and </s> is excluded before the last token.
    """
    os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"
    for name in (*NOT_NEEDED, "torchvision.models.vgg"):
        sys.modules[name] = MagicMock(__spec__=ModuleSpec(name, None))
    decoder: Any = importlib.import_module("nmtpytorch.layers.decoders.conditional").ConditionalDecoder
    source = Path(importlib.import_module("nmtpytorch").__file__ or "").with_name("search.py")
    text = source.read_text(encoding="utf-8")
    source.write_text(text.replace("[tstep] / n_", "[tstep] // n_").replace("(nk_mask / k)", "(nk_mask // k)"), "utf-8")
    original = decoder.f_next

    def without_end(*arguments: Any) -> Any:  # noqa: ANN401
        log_probs, state = original(*arguments)
        log_probs[:, 2] = -1000
        return log_probs, state

    sys.argv = ["nmtpy", "train", "-C", str(folder / "nmtpytorch.conf"), "-d", "cpu"]
    if mode != "train":
        decoder.f_next = without_end
        (model,) = (folder / "nmtpytorch").rglob("*-final.ckpt")
        sizes = ["-b", "64", "-k", str(BEAM), "-m", str(LENGTH)]
        sys.argv = ["nmtpy", "translate", *sizes, "-d", "cpu", "-s", "val", "-o", str(folder / "out"), str(model)]
    time.time = time.process_time
    runpy.run_path(str(Path(sys.executable).parent / "nmtpy"), run_name="__main__")


def scores(folder: Path) -> None:
    """Compute BLEU, chrF and TER by sacrebleu."""
    import sacrebleu

    hypotheses, references = read(folder, "hypotheses"), [read(folder, "references")]
    metrics = (sacrebleu.corpus_bleu, sacrebleu.corpus_chrf, sacrebleu.corpus_ter)
    timed(len(hypotheses), lambda: [metric(hypotheses, references) for metric in metrics])


def significance(folder: Path) -> None:
    """Test the difference of two BLEU scores by approximate randomisation of sacrebleu."""
    from sacrebleu.metrics import BLEU
    from sacrebleu.significance import PairedTest

    systems = [(name, read(folder, name)) for name in ("hypotheses", "others")]
    references = [read(folder, "references")]
    timed(TRIALS, lambda: PairedTest(systems, {"BLEU": BLEU()}, references, "ar", TRIALS)())


def caption_metric(folder: Path, module: str, name: str) -> None:
    """Compute CIDEr-D or ROUGE-L by pycocoevalcap."""
    hypotheses, references = read(folder, "hypotheses"), groups(read(folder, "references"))
    scorer = getattr(importlib.import_module(f"pycocoevalcap.{module}.{module}"), name)()
    items = dict(enumerate(references)), {row: [text] for row, text in enumerate(hypotheses)}
    timed(len(hypotheses), lambda: scorer.compute_score(*items))


def language_model(folder: Path) -> None:
    """Score sentences by KenLM, which looks up their words."""
    import kenlm

    sentences = read(folder, "train.de")
    model = kenlm.Model(str(folder / "lm.arpa"))
    timed(sum(len(text.split()) + 1 for text in sentences), lambda: [model.score(text) for text in sentences])


def faiss(folder: Path) -> None:
    """Search by inner products with all vectors, one query at a time."""
    import faiss as library
    import numpy as np

    library.omp_set_num_threads(1)
    vectors, queries = np.load(folder / "vectors.npy"), np.load(folder / "queries.npy")
    index = library.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    timed(len(queries), lambda: [index.search(query[None], NEIGHBOURS) for query in queries])


def usearch(folder: Path) -> None:
    """Search by cosines with all vectors, one query at a time, in one thread."""
    import numpy as np
    from usearch.index import MetricKind, search

    vectors, queries = np.load(folder / "vectors.npy"), np.load(folder / "queries.npy")
    options = {"exact": True, "threads": 1}
    timed(len(queries), lambda: [search(vectors, query, NEIGHBOURS, MetricKind.Cos, **options) for query in queries])


def limner_training(folder: Path) -> None:
    """Train the text-only NMT of the recipes for two epochs; the duration is of the steps of the second epoch."""
    from limner.data.collection import Collection, write_items
    from limner.data.examples import Item, ItemSentence
    from limner.runs.recipe import load_recipe
    from limner.runs.records import read_log
    from limner.training.loop import train

    time.perf_counter = time.process_time
    corpora = {part: [read(folder, f"{part}.{lang}") for lang in ("en", "de")] for part in ("train", "val")}
    # One pair of all words: too long to be trained on, but its words are in the vocabularies, as the peers' are.
    corpora["train"] = [
        [*texts, " ".join(read(folder, f"words.{lang}"))]
        for texts, lang in zip(corpora["train"], ("en", "de"), strict=True)
    ]
    items = [
        Item(f"{part}{row}", part, sentences=(ItemSentence("en", source), ItemSentence("de", target)))
        for part, texts in corpora.items()
        for row, (source, target) in enumerate(zip(*texts, strict=True))
    ]
    scratch = Path(tempfile.mkdtemp(dir=folder))
    write_items(scratch / "pairs", items)
    run = train(load_recipe("calixto2017/small", RECIPE), Collection.open(scratch / "pairs"), scratch / "run")
    (folder / "run").unlink(missing_ok=True)
    (folder / "run").symlink_to(run)
    rates = [line.tokens_per_second for line in read_log(run / "log.jsonl") if line.kind == "train"]
    tokens = sum(len(text.split()) + 1 for text in read(folder, "train.de"))
    print(json.dumps({"count": len(items), "seconds": tokens / float(rates[-1] or 0)}))


def limner_translations(folder: Path) -> None:
    """Translate by the run of `limner_training`, each sentence with the same number of tokens."""
    import limner

    translator, sources = limner.load(str(folder / "run")), read(folder, "val.en")
    decoding = {"beam_size": BEAM, "min_length": LENGTH, "max_length": LENGTH, "batch_size": 64}
    timed(len(sources), lambda: translator.translate(sources, **decoding), warm_up=False)  # as the peers


def limner_scores(folder: Path, names: str) -> None:
    """Compute metrics; metrics of captions with five references."""
    from limner.metrics import score_sentences

    texts, references = read(folder, "hypotheses"), read(folder, "references")
    lists = groups(references) if names in ("cider", "rouge_l") else [[text] for text in references]
    timed(len(texts), lambda: score_sentences(texts, lists, names.split(), lang="de"))


def limner_significance(folder: Path) -> None:
    """Test the difference of two BLEU scores, computing their statistics as well."""
    from limner.metrics import sentence_statistics
    from limner.metrics.significance import approximate_randomisation

    references = [[text] for text in read(folder, "references")]

    def test() -> None:
        (a,), (b,) = (
            sentence_statistics(read(folder, name), references, ["sacrebleu"], lang="de")
            for name in ("hypotheses", "others")
        )
        approximate_randomisation(a.statistics, b.statistics, a.metric.value, trials=TRIALS)

    timed(TRIALS, test)


def limner_language_model(folder: Path) -> None:
    """Score sentences by the n-gram model of phrase-based translation, as its decoder does, words looked up."""
    import numpy as np
    from numba import njit

    from limner.smt.arpa import read_arpa
    from limner.smt.language_model import next_word
    from limner.text.vocab import SPECIAL_TOKENS

    entries = ["<pad>", "<s>", "</s>", "<unk>", *read(folder, "words.de")]
    model, ids = read_arpa(folder / "lm.arpa", entries), {word: number for number, word in enumerate(entries)}
    tables, context = (model.table(), model.log_probs, model.log_backoffs, model.vocab_size), np.zeros(2, np.int64)

    @njit
    def total(table, log_probs, log_backoffs, size, context, words):  # noqa: ANN001, ANN202
        result, known = 0.0, 1
        for word in words:
            log_prob, known = next_word(table, log_probs, log_backoffs, size, context, known, word)
            result += log_prob
        return result

    def score(text: str) -> float:
        context[0] = SPECIAL_TOKENS.bos
        words = [ids.get(word, SPECIAL_TOKENS.unk) for word in text.split()]
        return float(total(*tables, context, np.array([*words, SPECIAL_TOKENS.eos])))

    sentences = read(folder, "train.de")
    timed(sum(len(text.split()) + 1 for text in sentences), lambda: [score(text) for text in sentences])


def limner_vectors(folder: Path) -> None:
    """Search the nearest images of sentences in an index of the kind `embeddings`, the sentence encoded."""
    import lance
    import numpy as np
    import pyarrow as pa

    from limner.models.protocols import ModelInputs
    from limner.models.two_tower import TwoTower, TwoTowerSettings
    from limner.retrieval.index.embeddings import EmbeddingIndex
    from limner.runs.trained_model import TrainedModel
    from limner.text.tokenizer import Tokenizer
    from limner.text.words import TextSettings

    values, texts = np.load(folder / "vectors.npy"), read(folder, "val.en")
    tokenizer = Tokenizer.train(texts, TextSettings())
    settings = TwoTowerSettings(pooling="words", joint_dim=values.shape[1])
    tower = TwoTower(settings, ModelInputs(len(tokenizer), {"pooled": (8,)})).eval()
    scratch = Path(tempfile.mkdtemp(dir=folder)) / "vectors.lance"
    column = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])
    table = lance.write_dataset(pa.table({"row": np.arange(len(values)), "vector": column}), str(scratch))
    unused: Any = None
    index = EmbeddingIndex(TrainedModel(tower, tokenizer, unused, unused), table, scratch)
    sentences = texts[: len(np.load(folder / "queries.npy"))]
    timed(len(sentences), lambda: [index.candidates(text, NEIGHBOURS) for text in sentences])


PROGRAMS: dict[str, Callable[[Path], None]] = {
    "joeynmt-train": partial(joeynmt, mode="train"),
    "joeynmt-test": partial(joeynmt, mode="test"),
    "nmtpytorch-train": partial(nmtpytorch, mode="train"),
    "nmtpytorch-translate": partial(nmtpytorch, mode="translate"),
    "scores": scores,
    "significance": significance,
    "cider": partial(caption_metric, module="cider", name="Cider"),
    "rouge": partial(caption_metric, module="rouge", name="Rouge"),
    "language_model": language_model,
    "faiss": faiss,
    "usearch": usearch,
    "limner-training": limner_training,
    "limner-translations": limner_translations,
    "limner-scores": partial(limner_scores, names="sacrebleu chrf ter_text"),
    "limner-significance": limner_significance,
    "limner-cider": partial(limner_scores, names="cider"),
    "limner-rouge": partial(limner_scores, names="rouge_l"),
    "limner-language_model": limner_language_model,
    "limner-vectors": limner_vectors,
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](Path(sys.argv[2]))

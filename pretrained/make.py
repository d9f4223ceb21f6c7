"""Make the built-in captioners and translators: collections, features, concepts, pseudo-captions, training, packing.

    make pretrained DATA=folder [ARGS="--lang en de zh --translate de en"]

DATA holds the published corpora (see README.md beside this file); WORK receives the collections and the runs. A step
whose result exists is not repeated, and an interrupted training is resumed.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from limner.inference.image_searcher import JOINT
from limner.runs.pretrained import PRETRAINED
from multi30k import write_german, write_paraphrases
from non_photographs import KINDS, draw_non_photograph
from pack_run import add_graphs, pack

TITLES = {
    "en": "Built-in captioner, English",
    "de": "Built-in captioner, German",
    "zh": "Built-in captioner, Chinese",
}
TRANSLATOR_TITLES = {"de": "Built-in translator, English to German", "en": "Built-in translator, German to English"}
"""By the language that is translated to."""
DECODING = {
    "en": {"beam_size": 10, "length_penalty": 1.0},
    "de": {"beam_size": 5, "length_penalty": 0.7},
    "zh": {"beam_size": 5, "length_penalty": 0.7},
}
CALIBRATION = {
    "en": {"weight": 1.0, "search_weight": 1.5, "margin": 1.5, "min_confidence": 0.35, "plain_probability": 0.3}
    | {"consensus": 4.0, "overlooked": 0.8, "unseen": 0.3},
    "de": {"weight": 0.2, "search_weight": 0.4, "margin": 1.0, "min_confidence": 0.25, "plain_probability": 0.3}
    | {"unseen": 0.3},
    "zh": {"weight": 0.1, "search_weight": 0.3, "margin": 1.0, "min_confidence": 0.25, "plain_probability": 0.3},
}
"""Weights of the concepts: the English ones chosen on the validation photographs, others on the validation split."""
FIRST_STAGE = (
    ("training.epochs=5", "model.dropout=0.5", "model.image_encoder.dropout=0.3", "training.optimizer.lr=0.0008"),
    ("training.epochs=2",),
)
"""Settings of the runs of the first stage of the English captioner; the second starts from the weights of the first."""
FEATURES = ("--backbone", "efficientnet-lite2", "--kind", "both", "--size", 300, "--resize", "squash")
DRAWN = 70
"""Number of generated images of each kind."""


def main() -> None:
    """Make the captioners and translators of the chosen languages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with the corpora")
    parser.add_argument("--work", type=Path, default=Path("pretrained/work"), help="folder of collections and runs")
    parser.add_argument("--out", type=Path, default=PRETRAINED, help="folder of the packed models")
    parser.add_argument("--lang", nargs="*", choices=list(TITLES), default=list(TITLES))
    parser.add_argument("--translate", nargs="*", choices=list(TRANSLATOR_TITLES), default=list(TRANSLATOR_TITLES))
    options = parser.parse_args()
    data, work = options.data.resolve(), options.work
    work.mkdir(parents=True, exist_ok=True)
    if options.lang:
        make_captioners(options.lang, data, work, options.out)
    for lang in options.translate:
        make_translator(lang, data, work, options.out)


def make_captioners(langs: Sequence[str], data: Path, work: Path, out: Path) -> None:
    """Make the captioners of languages."""
    base, concepts = make_base(data, work), work / "concepts.npz"
    if not concepts.exists():
        script("concepts", base, "--data", data, "--out", concepts)
    images = [path for folder in ("flickr8k", "pool") for path in sorted((data / folder / "images").iterdir())[::300]]
    script("quantize_backbone", *images, "--out", work / "backbone.onnx")
    quantized = (work / "backbone.onnx").read_bytes()
    for lang in langs:
        collection = make_collection(lang, data, work)
        place = ("--collection", base, "--data", data, "--lang", lang, "--calibration", json.dumps(CALIBRATION[lang]))
        first = ["--init", train_on_corpus(concepts, data, work)] if lang == "en" else []
        run = train(f"flickr8k-{lang}", collection, work / f"run-{lang}", *first)
        pack(run, out / lang, TITLES[lang], DECODING[lang])
        script("pack_concepts", concepts, *place, "--out", out / lang)
        add_graphs(out / lang, quantized)
        title = TITLES[lang].replace("captioner", "search")
        joint = train(f"joint-{lang}", add_paraphrases(lang, collection, data, work), work / f"joint-{lang}")
        pack(joint, out / lang / JOINT, title, {})


def make_translator(lang: str, data: Path, work: Path, out: Path) -> None:
    """Make the translator to a language, from the pairs of Multi30k's first task."""
    collection = work / "translations"
    if not (collection / "items.lance").exists():
        limner("import", "multi30k", data / "multi30k", collection)
    folder = out / ("en-de" if lang == "de" else "de-en")
    pack(train(f"multi30k-{lang}", collection, work / f"run-translate-{lang}"), folder, TRANSLATOR_TITLES[lang], {})
    add_graphs(folder)


def train(recipe: str, collection: Path, run: Path, *options: object) -> Path:
    """Train a model with some options, or resume its training; return its run directory."""
    resume = ["--resume"] if (run / "config.json").exists() else []
    limner("train", f"pretrained/{recipe}", "--collection", collection, "--out", run, *options, *resume)
    return run


def make_base(data: Path, work: Path) -> Path:
    """Make the collection that concepts are trained on: Flickr8k, the pool with its labels, and generated images."""
    base = work / "base"
    if not (base / "items.lance").exists():
        limner("import", "flickr", data / "flickr8k", base, "--splits", data / "flickr8k" / "splits")
        rows = [json.loads(line) for line in (data / "pool" / "manifest.jsonl").read_text("utf-8").splitlines()]
        pool = [
            {"id": f"pool-{Path(row['file']).stem}", "split": "pool", "image": f"pool/images/{row['file']}"}
            | {"label": row["label"], "lang": "en", "text": row["label"]}
            for row in rows
        ]
        limner("import", "jsonl", write_rows(work / "pool.jsonl", pool), base, "--images", data)
        limner("import", "jsonl", write_rows(work / "drawn.jsonl", draw(work)), base, "--images", work)
    limner("features", base, *FEATURES)
    return base


def draw(work: Path) -> list[Mapping[str, str]]:
    """Draw images that are no photographs; return their rows."""
    (work / "drawn").mkdir(exist_ok=True)
    rows = []
    for kind in KINDS:
        for seed in range(DRAWN):
            name = f"{kind.replace(' ', '-')}-{seed}"
            draw_non_photograph(kind, seed).save(work / "drawn" / f"{name}.png")
            row = {"id": f"drawn-{name}", "split": "drawn", "image": f"drawn/{name}.png"}
            rows.append(row | {"lang": "en", "text": "a drawing"})
    return rows


def make_collection(lang: str, data: Path, work: Path) -> Path:
    """Make the collection that a captioner is trained on, with the features of the base."""
    collection = work / f"captions-{lang}"
    if not (collection / "items.lance").exists():
        import_captions(lang, collection, data, work)
        shutil.rmtree(collection / "features", ignore_errors=True)
        (collection / "features").symlink_to((work / "base" / "features").resolve(), target_is_directory=True)
    return collection


def import_captions(lang: str, collection: Path, data: Path, work: Path) -> None:
    """Import the captions of a language, the English ones with the pseudo-captions."""
    flickr = data / "flickr8k"
    splits, images = ("--splits", flickr / "splits"), ("--images", flickr / "images")
    if lang == "en":
        limner("import", "flickr", flickr, collection, *splits)
        pseudo, base = work / "pseudo.jsonl", work / "base"
        if not pseudo.exists():
            script("pseudo_captions", base, "--data", data, "--concepts", work / "concepts.npz", "--out", pseudo)
        limner("import", "jsonl", pseudo, collection, "--images", data)
    elif lang == "de":
        write_german(data / "multi30k", work / "german.jsonl")
        limner("import", "jsonl", work / "german.jsonl", collection, *images)
    else:
        captions = data / "flickr8k_cn" / "flickr8kzhc.caption.txt.gz"
        limner("import", "flickr", captions, collection, *images, *splits)


def add_paraphrases(lang: str, captions: Path, data: Path, work: Path) -> Path:
    """Copy the collection of the English captioner, and add descriptions of Multi30k without images."""
    if lang != "en":
        return captions
    collection = work / f"paraphrases-{lang}"
    if not (collection / "items.lance").exists():
        shutil.copytree(captions, collection, symlinks=True)
        write_paraphrases(data / "multi30k", lang, work / f"paraphrases-{lang}.jsonl")
        limner("import", "jsonl", work / f"paraphrases-{lang}.jsonl", collection)
    return collection


def train_on_corpus(concepts: Path, data: Path, work: Path) -> Path:
    """Train the first stage of the English captioner, with sentences without a photograph; return its run."""
    collection, table = work / "corpus-en", f"features/{FEATURES[1]}.lance"
    if not (collection / "items.lance").exists():
        shutil.rmtree(collection, ignore_errors=True)
        shutil.copytree(work / "base" / table, collection / table)
        corpora = ("--collection", work / "base", "--data", data)
        script("pack_concepts", concepts, *corpora, "--out", work / "concepts")
        rows = work / "text-en.jsonl"
        place = ("--concepts", work / "concepts", "--rows", rows, "--out", collection / table)
        script("text_features", work / "base", "--data", data, *place)
        limner("import", "jsonl", rows, collection, "--images", data)
        import_captions("en", collection, data, work)
    runs: list[Path] = []
    for settings in FIRST_STAGE:
        start = ["--init", runs[-1]] if runs else []
        runs.append(train("corpus-en", collection, work / f"run-corpus-{len(runs)}", *start, *settings))
    return runs[-1]


def write_rows(path: Path, rows: list[Mapping[str, str]]) -> Path:
    """Write lines of JSON."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def limner(*arguments: object) -> None:
    """Run a command of Limner."""
    _run(["-m", "limner", *map(str, arguments)])


def script(name: str, *arguments: object) -> None:
    """Run a script of this folder."""
    _run([str(Path(__file__).with_name(f"{name}.py")), *map(str, arguments)])


def _run(command: list[str]) -> None:
    print(shlex.join(command), file=sys.stderr)
    subprocess.run([sys.executable, *command], check=True)


if __name__ == "__main__":
    main()

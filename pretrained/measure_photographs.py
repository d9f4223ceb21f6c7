"""Measure the captions of photographs that have human captions or categories, and print the list of captions.

    python pretrained/measure_photographs.py en --photographs FOLDER
    python pretrained/measure_photographs.py --captions captions.tsv --photographs FOLDER
    python pretrained/measure_photographs.py --human --photographs FOLDER

FOLDER has `coco/` and `pascal/`, each with `images/` and `captions.jsonl` (file, captions, and a category or none).
The captions are those of `limner describe` with default settings, of a built-in language or a run directory; or lines
`file<TAB>caption` of a file. `--human` measures the first caption of each photograph against the four others.

Figures, words in lower case without punctuation and nouns in the singular:

- shown: share of the photographs that have a caption;
- CIDEr-D of the captions, an absent one counting as empty;
- content word: share of the photographs whose caption has a word, function words aside, that three people used;
- main noun wrong: share of the captions whose first thing no person named, by any word for it or a more general one;
- category: share of the photographs whose caption names the category, by any word for it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from limner.metrics.caption import cider_statistics
from things import by_coco, is_named_by, mentions, things, tokens

FUNCTION_WORDS = frozenset(
    """a an the this that these those some any each other another all both several many few one two three four
    five six of in on at by with from to into onto over under near next behind front between through up down
    off out around across along above below beside against inside outside top side back middle while as for
    and or but is are was were be being been has have having had it its his her their he she they him them
    there who which what where when very so not no can does do doing s t left right end part""".split()  # noqa: SIM905
)
EMPTY_WORDS = frozenset(
    """photo picture image view shot close closeup group couple lot bunch pair something""".split()  # noqa: SIM905
)
"""Nouns that say nothing of what is in the photograph."""
PEOPLE = 3
"""Number of people who use a word for it to count."""
SINGULAR = {"men": "man", "women": "woman", "children": "child", "people": "person", "mice": "mouse", "geese": "goose"}
CATEGORIES = {
    "aeroplane": "airplane", "bicycle": "bicycle", "bird": "bird", "boat": "boat", "bottle": "bottle", "bus": "bus",
    "car": "car", "cat": "cat", "chair": "chair", "cow": "cow", "diningtable": "dining table", "dog": "dog",
    "horse": "horse", "motorbike": "motorcycle", "person": "person", "pottedplant": "potted plant", "sheep": "sheep",
    "sofa": "couch", "train": "train", "tvmonitor": "tv",
}  # fmt: skip
"""Nouns of the categories of Pascal."""


def main() -> None:
    """Print the captions and the figures of each folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="built-in language or run directory")
    parser.add_argument("--photographs", type=Path, required=True, help="folder with coco/ and pascal/")
    parser.add_argument("--captions", type=Path, help="file of lines file<TAB>caption, instead of a model")
    parser.add_argument("--human", action="store_true", help="measure the first human caption")
    parser.add_argument("--beam-size", type=int, help="beam size instead of that of the model")
    parser.add_argument("--quiet", action="store_true", help="print the figures alone")
    options = parser.parse_args()
    for folder in ("coco", "pascal"):
        lines = (options.photographs / folder / "captions.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        if options.human:
            captions = {row["file"]: row["captions"][0] for row in rows}
            rows = [{**row, "captions": row["captions"][1:]} for row in rows]
        elif options.captions:
            captions = read_captions(options.captions)
        else:
            images = [options.photographs / folder / "images" / row["file"] for row in rows]
            captions = describe(options.model, images, options.beam_size)
        figures = measure(rows, captions)
        if not options.quiet:
            for row in rows:
                print(verdict(row, captions.get(row["file"])), row["file"], captions.get(row["file"]), sep="\t")
        print(folder, json.dumps(figures), file=sys.stdout)


def read_captions(file: Path) -> dict[str, str]:
    """Read lines of file and caption; an empty caption is none."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return {name: caption for name, _, caption in (line.partition("\t") for line in lines) if caption}


def describe(model: str, images: Sequence[Path], beam_size: int | None) -> dict[str, str]:
    """Describe photographs with the default settings; photographs without a caption are left out."""
    import limner

    captioner = limner.load(Path(model)) if Path(model).is_dir() else limner.load(lang=model)
    results = captioner.describe(images, **({"beam_size": beam_size} if beam_size else {}))
    best = [hypotheses[0] for hypotheses in results]
    return {image.name: caption.text for image, caption in zip(images, best, strict=True) if caption.is_sure}


def measure(rows: Sequence[Mapping[str, Any]], captions: Mapping[str, str]) -> dict[str, float]:
    """Compute the figures of the photographs of a folder, in per cent."""
    hypotheses = [" ".join(tokens(captions.get(row["file"], ""))) for row in rows]
    references = [[" ".join(tokens(caption)) for caption in row["captions"]] for row in rows]
    shown = [row for row in rows if row["file"] in captions]
    found = {
        "photographs": len(rows),
        "shown": len(shown) / len(rows) * 100,
        "cider": 100 * float(cider_statistics(hypotheses, references)[:, 0].mean()),
        "content_word": share(has_common_word(row, captions.get(row["file"], "")) for row in rows),
        "main_noun_wrong": share(is_main_noun_wrong(row, captions[row["file"]]) for row in shown),
    }
    if "category" in rows[0]:
        found["category"] = share(names_category(row, captions.get(row["file"], "")) for row in rows)
    return {name: round(value, 1) for name, value in found.items()}


def share(flags: Any) -> float:  # noqa: ANN401  (an iterable of truth values)
    """Return the share of true values in per cent."""
    values = [bool(flag) for flag in flags]
    return 100 * sum(values) / max(len(values), 1)


def content_words(sentence: str) -> set[str]:
    """Return the words of a sentence that are no function words, in the singular."""
    return {singular(word) for word in tokens(sentence)} - FUNCTION_WORDS - EMPTY_WORDS


def singular(word: str) -> str:
    """Return the singular of a regular plural, and the word otherwise."""
    if word in SINGULAR:
        return SINGULAR[word]
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("ches", "shes", "sses", "xes")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is")) and len(word) > 3 else word


def has_common_word(row: Mapping[str, Any], caption: str) -> bool:
    """Tell whether a caption has a content word that at least three people used."""
    counts = Counter(word for reference in row["captions"] for word in content_words(reference))
    return any(counts[word] >= PEOPLE for word in content_words(caption))


def is_main_noun_wrong(row: Mapping[str, Any], caption: str) -> bool:
    """Tell whether the first thing that a caption names is in no caption of a person."""
    first = next(iter(mentions(caption)), None)
    if first is None:
        return not has_common_word(row, caption)
    said = {singular(word) for reference in row["captions"] for word in (*tokens(reference),)}
    phrases = {mention.name for reference in row["captions"] for mention in mentions(reference)}
    accepted = {word for noun in first.nouns for word in is_named_by(noun)} | {first.name}
    return not any(word in phrases or singular(word) in said for word in accepted)


def names_category(row: Mapping[str, Any], caption: str) -> bool:
    """Tell whether a caption names the category of a photograph."""
    thing = by_coco()[CATEGORIES[row["category"]]]
    accepted = {thing.noun, *thing.words}
    nouns = {noun for mention in mentions(caption) for noun in mention.nouns}
    return thing.noun in nouns or any(
        noun in accepted or thing.noun in things()[noun].kinds for noun in nouns & set(things())
    )


def verdict(row: Mapping[str, Any], caption: str | None) -> str:
    """Return marks: + a common word, ! a wrong main noun, - no caption."""
    if caption is None:
        return "-"
    return ("+" if has_common_word(row, caption) else " ") + ("!" if is_main_noun_wrong(row, caption) else " ")


if __name__ == "__main__":
    main()

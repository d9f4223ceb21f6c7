"""Pseudo-captions: sentences of text corpora for photographs that have labels and detections, and no captions.

    python pretrained/pseudo_captions.py COLLECTION --data FOLDER --concepts concepts.npz --out pseudo.jsonl

FOLDER has `caption_text/` (COCO and Pascal sentences), `multi30k/task2` and `flickr8k_overlap.tsv`, and `pool/`. The
captions of Flickr8k's training split are read from the collection; sentences about its validation and test photographs
are left out.

A sentence is a candidate for a photograph if every thing that it names is there, as many of them as it says, its first
thing is the label or a large detection, and it names the thing of the label. Candidates are ordered by

    sum over content words w of min(0, log P(w | first thing) + log p(w | photograph) / p(w)) + BONUS

with P from the corpora and p from the concepts, so that words that neither the thing nor the photograph makes likely
(colours, actions) are avoided, plus the weight of the things that are named. A sentence loses with each use. Where
fewer than a few sentences remain, a small grammar writes plain ones ('a close up of a X', 'a X on a white background').
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.sparse import csr_array

from concepts import Photograph, is_held_out, pooled_features, read_photographs
from limner.data.collection import Collection
from measure_photographs import content_words
from things import by_coco, by_label, many, mentions, names, things, tokens

LENGTHS = range(4, 19)
"""Numbers of words of the sentences that are used."""
BONUS = 3.0
"""Value of a content word: one with a probability above exp(-BONUS) counts for a sentence, another one against it."""
NAMED = 1.5
"""Value of naming a detected thing that fills the photograph."""
EVERYDAY = 0.5
"""Value of a sentence about a photograph of everyday things (COCO, Pascal) beside one of Flickr."""
REUSE = 0.8
"""What a sentence loses with each use."""
MAX_USES = 25
LIKELY = -2.0
"""Value of the content words of a sentence below which it is not used."""
DETECTED, AGREED = 0.6, 0.35
"""Score from which a detection holds by itself, and from which it holds if the concepts agree."""
AGREEMENT = 3.0
"""Ratio of the probability of a concept to its rate from which the concepts agree with a detection."""
CONCEPT = 0.2
"""Probability from which a thing that the detector does not know is there."""
COUNTS = {
    "a": 1, "an": 1, "one": 1, "single": 1, "the": 1, "two": 2, "pair": 2, "couple": 2, "both": 2, "three": 3,
    "four": 4, "five": 5, "six": 6, "several": 3.5, "many": 4.5, "group": 3.5, "bunch": 3.5, "herd": 3.5, "flock": 3.5,
    "row": 3.5, "lots": 4.5, "crowd": 4.5, "some": 2.5, "few": 2.5,
}  # fmt: skip
"""Words before a name that say how many there are; fractions mean at least so many."""
PEOPLE = "#people"
"""Key of the number of people that a sentence names one by one."""
MASS = frozenset(
    """bread rice meat broccoli corn garlic ginger lettuce spinach cabbage food fruit yogurt pizza asparagus hay wine
    chocolate coral paper beef armor fabric grass water wood golf rugby soap yarn guacamole pottery""".split()  # noqa: SIM905
) | {"sour cream", "ice cream"}
"""Nouns without an article."""
PLURAL = frozenset(
    """shoes rocks grapes peas ribs cosmetics dishes weights feathers maracas horses vegetables""".split()  # noqa: SIM905
)
PAIRS = frozenset(
    """scissors skis headphones shorts pants boots binoculars tights pajamas sunglasses""".split()  # noqa: SIM905
)
ANIMAL_PLACES = {
    "grass": "standing in the grass",
    "snow": "in the snow",
    "water": "in the water",
    "field": "standing in a field",
    "sand": "on the sand",
    "rock": "on a rock",
}

Array = NDArray[np.float32]


class Corpus(NamedTuple):
    """Sentences with what they name."""

    sentences: list[str]
    keys: dict[tuple[str, float], int]
    """Column of each name with a number."""
    named: csr_array
    """Truth of key by sentence, (S, K)."""
    first: NDArray[np.int64]
    """Column of the first name of each sentence; -1 for none."""
    values: Array
    """Value of each sentence by its corpus."""
    words: dict[str, int]
    entries: csr_array
    """log P(w | first thing) of each content word of each sentence, (S, W)."""


def read_sentences(collection: Path, data: Path) -> dict[str, float]:
    """Read the sentences of all corpora, each once, with the value of its corpus."""
    lines = [*_lines(data / "caption_text" / "coco.en.txt.gz"), *_lines(data / "caption_text" / "pascal.en.txt.gz")]
    everyday = len(lines)
    lines += [sentence.text for item in Collection.open(collection).items("train") for sentence in item.sentences]
    lines += multi30k_descriptions(data / "multi30k", "en")
    unique: dict[str, float] = {}
    for number, line in enumerate(lines):
        unique.setdefault(" ".join(tokens(line)), EVERYDAY if number < everyday else 0.0)
    return {line: value for line, value in unique.items() if len(line.split()) in LENGTHS and not repeats_name(line)}


def repeats_name(sentence: str) -> bool:
    """Tell whether a sentence names a thing twice ('a black dog and a white dog'), which hides how many there are."""
    found = [mention.nouns for mention in mentions(sentence) if "person" not in mention.nouns]
    return len(found) > len(set(found))


def _lines(path: Path) -> Iterator[str]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from (line.strip() for line in lines)


def multi30k_descriptions(folder: Path, lang: str) -> Iterator[str]:
    """Yield the descriptions of Multi30k's second task, without images of Flickr8k's validation and test splits."""
    with (folder / "flickr8k_overlap.tsv").open(encoding="utf-8") as lines:
        held = {
            row["flickr8k_image"].split("_")[0]
            for row in csv.DictReader(lines, delimiter="\t")
            if row["flickr8k_split"] in ("val", "test")
        }
    for split in ("train", "val", "test_2016"):
        images = (folder / "task2" / f"{split}.images.txt").read_text().split()
        for number in range(1, 6):
            for image, line in zip(images, _lines(folder / "task2" / f"{split}.{number}.{lang}.gz"), strict=True):
                if image.split("#")[0].split(".")[0].split("_")[0] not in held:
                    yield line


def number_before(words: Sequence[str], start: int) -> float:
    """Return the number of a name: of the closest number word before it, within four words."""
    for position in range(start - 1, max(start - 5, -1), -1):
        if words[position] in COUNTS:
            return COUNTS[words[position]]
        if words[position] in ("with", "and", "on", "in", "next", "at"):
            break
    return 0


def build_corpus(sentences: Mapping[str, float]) -> Corpus:
    """Index the sentences by what they name."""
    keys: dict[tuple[str, float], int] = {}
    words: dict[str, int] = {}
    first = np.full(len(sentences), -1)
    rows: list[int] = []
    columns: list[int] = []
    word_rows: list[int] = []
    word_columns: list[int] = []
    subject: list[frozenset[str]] = []
    for row, sentence in enumerate(sentences):
        split, found = sentence.split(), mentions(sentence)
        for mention in found:
            number = number_before(split, mention.start)
            if mention.is_plural and number < 2:
                number = 2.5 if mention.name != "people" or number == 0 else 1.0
            column = keys.setdefault((mention.name, number), len(keys))
            rows.append(row)
            columns.append(column)
            if first[row] < 0:
                first[row] = column
        people = sum(mention.nouns == {"person"} for mention in found)
        if people > 1:
            rows.append(row)
            columns.append(keys.setdefault((PEOPLE, people), len(keys)))
        subject.append(found[0].nouns if found else frozenset())
        parts = {part for mention in found for part in mention.name.split()}
        for word in content_words(" ".join(word for word in split if word not in parts and word not in COUNTS)):
            word_rows.append(row)
            word_columns.append(words.setdefault(word, len(words)))
    named = csr_array((np.ones(len(rows), np.int32), (rows, columns)), shape=(len(sentences), len(keys)))
    entries = _log_probabilities(subject, word_rows, word_columns, len(sentences), len(words))
    values = np.array(list(sentences.values()), np.float32)
    return Corpus(list(sentences), keys, named, first, values, words, entries)


def _log_probabilities(
    subject: Sequence[frozenset[str]], rows: Sequence[int], columns: Sequence[int], sentences: int, words: int
) -> csr_array:
    """Compute log P(w | first thing) of each word of each sentence, smoothed by the rate of the word."""
    nouns = {noun: number for number, noun in enumerate(sorted({noun for one in subject for noun in one}))}
    totals, joint, overall = np.ones(len(nouns) + 1), Counter(), Counter()  # type: ignore[var-annotated]
    for one in subject:
        for noun in one:
            totals[nouns[noun]] += 1
    for row, column in zip(rows, columns, strict=True):
        overall[column] += 1
        for noun in subject[row]:
            joint[nouns[noun], column] += 1
    values = []
    for row, column in zip(rows, columns, strict=True):
        rate = overall[column] / sentences
        best = max(
            ((joint[nouns[noun], column] + 20 * rate) / (totals[nouns[noun]] + 20) for noun in subject[row]),
            default=rate,
        )
        values.append(math.log(best) - 1e-6)
    return csr_array((np.array(values, np.float32), (rows, columns)), shape=(sentences, words))


class Evidence(NamedTuple):
    """What is in a photograph: the number of each thing, its weight, and the thing of the label."""

    numbers: dict[str, int]
    """Number of each thing; 0 where it is unknown."""
    weights: dict[str, float]
    """Size of each thing between 0 and 1."""
    label: str | None
    ratios: Array
    """log p(w | photograph) / p(w) of each word of the corpus."""
    probabilities: Mapping[str, float]


def evidence_of(
    photograph: Photograph, probabilities: Mapping[str, float], rates: Mapping[str, float], words: Mapping[str, int]
) -> Evidence:
    """Join the label, the detections that hold, and the concepts."""
    numbers: Counter[str] = Counter()
    weights: dict[str, float] = {}
    label = by_label()[photograph.label] if photograph.label else None
    rivals = set(label.kinds) & {"animal", "food", "fruit", "instrument"} if label else set()
    for name, score, (left, top, right, bottom) in photograph.detections:
        thing = by_coco()[name]
        agrees = probabilities[thing.noun] >= min(0.5, AGREEMENT * rates[thing.noun])
        competes = label is not None and thing.noun != label.noun and bool(rivals & set(thing.kinds))
        if competes or not (score >= DETECTED or (score >= AGREED and agrees)):
            continue
        numbers[thing.noun] += 1
        area = min(1.0, math.sqrt(max(0.0, (right - left) * (bottom - top))))
        weights[thing.noun] = max(weights.get(thing.noun, 0.0), area)
    found = dict(numbers)
    for noun, thing in things().items():
        if (
            not thing.coco
            and noun not in found
            and probabilities[noun] >= max(CONCEPT, min(0.5, AGREEMENT * rates[noun]))
        ):
            found[noun], weights[noun] = 0, 0.4
    if label is not None:
        found.setdefault(label.noun, 0)
        weights[label.noun] = max(weights.get(label.noun, 0.0), 0.8)
    ratios = np.zeros(len(words), np.float32)
    for word, column in words.items():
        if word in probabilities and word not in things():
            ratios[column] = math.log(max(probabilities[word], 1e-4) / max(rates[word], 1e-4))
    return Evidence(found, weights, label.noun if label else None, np.clip(ratios, -3, 2), probabilities)


def allowed_keys(evidence: Evidence, corpus: Corpus) -> tuple[NDArray[np.bool_], NDArray[np.bool_], Array]:
    """Tell which names with numbers are true, which of them may come first, and their values, each (K,)."""
    allowed = np.zeros(len(corpus.keys), bool)
    leading = np.zeros(len(corpus.keys), bool)
    values = np.zeros(len(corpus.keys), np.float32)
    largest = max(evidence.weights.values(), default=0.0)
    table = names()
    known = {word for noun in evidence.numbers for word in (noun, *things()[noun].words)}
    for name in {form for word in known for form in (word, many(word))}:
        nouns = [noun for noun in table[name] if noun in evidence.numbers]
        if not nouns:
            continue
        for number in {0.0, *COUNTS.values()}:
            column = corpus.keys.get((name, number))
            if column is not None and any(_agrees(number, evidence.numbers[noun]) for noun in nouns):
                weight = max(evidence.weights[noun] for noun in nouns)
                allowed[column] = True
                leading[column] = weight >= 0.6 * largest
                values[column] = NAMED * weight
    for (name, number), column in corpus.keys.items():
        if name == PEOPLE:
            allowed[column] = evidence.numbers.get("person", 0) >= number
    return allowed, leading, values


def _agrees(said: float, seen: int) -> bool:
    """Tell whether a number word agrees with the number of detections; an unknown number is one."""
    seen = seen or 1
    if said == 0:
        return True
    if said != int(said):
        return seen >= said - 0.5
    return seen == said or (said == 1 and seen <= 2)


def select(evidence: Evidence, corpus: Corpus, uses: NDArray[np.int64], wanted: int) -> list[str]:
    """Select sentences of the corpus for a photograph, best first."""
    allowed, leading, values = allowed_keys(evidence, corpus)
    if not allowed.any():
        return []
    wrong = corpus.named @ (~allowed).astype(np.int32)
    good = (wrong == 0) & (corpus.first >= 0) & leading[corpus.first] & (uses < MAX_USES)
    if evidence.label is not None:
        names_label = np.zeros(len(corpus.keys), np.int32)
        said = {form for word in (evidence.label, *things()[evidence.label].words) for form in (word, many(word))}
        for (name, _), column in corpus.keys.items():
            names_label[column] = name in said
        good &= (corpus.named @ names_label) > 0
    rows = np.flatnonzero(good)
    if not len(rows):
        return []
    part = corpus.entries[rows]
    data = np.minimum(0, part.data + evidence.ratios[part.indices]) + BONUS
    likely = csr_array((data, part.indices, part.indptr), shape=part.shape).sum(1)
    rows, likely = rows[likely >= LIKELY], likely[likely >= LIKELY]
    scores = likely + corpus.named[rows] @ values + corpus.values[rows] - REUSE * uses[rows]
    chosen: list[str] = []
    taken: list[set[str]] = []
    for row in rows[np.argsort(-scores, kind="stable")[:200]]:
        content = content_words(corpus.sentences[row])
        if any(len(content & other) > 0.75 * max(len(content | other), 1) for other in taken):
            continue
        chosen.append(corpus.sentences[row])
        taken.append(content)
        uses[row] += 1
        if len(chosen) == wanted:
            break
    return chosen


def plain_sentences(evidence: Evidence, background: str | None, generator: random.Random) -> list[str]:
    """Write plain sentences about the thing of the label, or the largest detection."""
    noun = evidence.label or max(evidence.weights, key=lambda one: evidence.weights[one], default=None)
    if noun is None:
        return []
    several = evidence.numbers.get(noun, 0) >= 2
    thing = (
        f"{'two' if evidence.numbers[noun] == 2 else 'some'} {many(noun)}"
        if several and noun not in PLURAL | PAIRS
        else with_article(noun)
    )
    result = [f"a photo of {thing}", f"a close up of {thing}"]
    if background:
        result = [f"{thing} on a {background} background", f"a photo of {thing} on a {background} background", *result]
    if "animal" in things()[noun].kinds and not background:
        for word, place in ANIMAL_PLACES.items():
            if evidence.probabilities.get(word, 0) > 0.5:
                result.insert(0, f"{thing} {place}")
    others = [
        one for one in evidence.weights if one != noun and evidence.weights[one] > 0.2 and evidence.numbers[one] > 0
    ]
    for other in sorted(others, key=lambda one: -evidence.weights[one])[:1]:
        result.insert(0, f"{thing} {'and' if generator.random() < 0.4 else 'next to'} {with_article(other)}")
    return list(dict.fromkeys(result))


def with_article(noun: str) -> str:
    """Return a noun with its indefinite article, if it has one."""
    if noun in PAIRS:
        return f"a pair of {noun}"
    if noun in PLURAL or noun in MASS:
        return noun
    if noun in ("sky", "ocean", "night"):
        return f"the {noun}"
    return f"{'an' if re.match('(?!uni|eu|ute)[aeiouA]|hour', noun) else 'a'} {noun}"


def background_of(path: Path) -> str | None:
    """Return 'white' or 'black' where the border of a photograph has one of these colours."""
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB").resize((48, 48)), np.float32)
    border = np.concatenate([pixels[:3].reshape(-1, 3), pixels[:, :3].reshape(-1, 3), pixels[:, -3:].reshape(-1, 3)])
    if (border.min(1) > 225).mean() > 0.85:
        return "white"
    return "black" if (border.max(1) < 30).mean() > 0.85 else None


def main() -> None:
    """Write the pseudo-captions of the pool as lines of JSON; those of held-out photographs train nothing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("collection", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--concepts", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--number", type=int, default=5, help="sentences a photograph")
    parser.add_argument("--limit", type=int, help="photographs, for a trial")
    options = parser.parse_args()
    corpus = build_corpus(read_sentences(options.collection, options.data))
    print(
        f"{len(corpus.sentences)} sentences, {len(corpus.keys)} names with numbers, {len(corpus.words)} words",
        file=sys.stderr,
    )
    photographs = read_photographs(options.collection, options.data, ("pool",))
    random.Random(1).shuffle(photographs)
    photographs = photographs[: options.limit]
    layer = np.load(options.concepts)
    features = pooled_features(options.collection, [one.id for one in photographs])
    logits = features @ layer["weight"].T + layer["bias"]
    probabilities = 1 / (1 + np.exp(-logits))
    concepts, rates = [str(one) for one in layer["concepts"]], layer["rate"]
    rate = dict(zip(concepts, rates.tolist(), strict=True))
    opened = Collection.open(options.collection)
    images = {item.id: Path(opened.absolute_image_path(item) or "") for item in opened.items("pool")}
    uses, generator = np.zeros(len(corpus.sentences), np.int64), random.Random(1)
    counts: Counter[int] = Counter()
    with options.out.open("w", encoding="utf-8") as out:
        for photograph, row in zip(photographs, probabilities, strict=True):
            evidence = evidence_of(photograph, dict(zip(concepts, row.tolist(), strict=True)), rate, corpus.words)
            chosen = select(evidence, corpus, uses, options.number)
            counts[len(chosen)] += 1
            if len(chosen) < 2:
                chosen += plain_sentences(evidence, background_of(images[photograph.id]), generator)[: 2 - len(chosen)]
            for text in chosen:
                split = "held-out" if is_held_out(photograph) else "train"
                image = str(images[photograph.id].relative_to(options.data.resolve()))
                line = {"id": photograph.id, "split": split, "image": image, "lang": "en", "text": text}
                out.write(json.dumps(line) + "\n")
    print(
        "sentences of the corpora a photograph:",
        dict(sorted(counts.items())),
        "uses:",
        Counter(uses.tolist()).most_common(12),
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()

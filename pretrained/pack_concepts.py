"""Write trained concepts into a run directory: concepts.json and concepts.safetensors.

    python pretrained/pack_concepts.py concepts.npz --collection COLLECTION --data FOLDER --out RUN [--lang de]

The English names of a thing are its words in `things.tsv` with their plurals; the names of another word are all its
forms in captions of the training split and in `caption_text`. German and Chinese concepts are the things and their
kinds, with the names of `things.tsv` and `kinds.tsv`. Where the calibration has a loss of unseen trigrams, a filter of
the trigrams of the corpora and of the plain sentences is beside the weights, by the token ids of RUN.
"""

from __future__ import annotations

import argparse
import csv
import functools
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from concepts import BACKBONE, PHOTOGRAPH, classes_of
from limner.data.collection import Collection
from limner.features.store import FeatureTable
from limner.runs.concepts import FILE, WEIGHTS, Calibration, Concept, ConceptsFile, trigram_bits
from limner.text.tokenizer import Tokenizer
from measure_photographs import singular
from pseudo_captions import multi30k_descriptions, read_sentences, with_article
from things import many, names, things

NO_THINGS = ("couple of", "pair of", "family of", "band of", "orange")
"""Names that contain a name of people, and a colour."""
ORANGES = ("an orange", "of an orange", "of oranges")
FULL = 0.4
"""Largest share of the bits of the filter that are set; its cube is the share of other trigrams that pass as seen."""
YOUNG = (
    "elephant", "giraffe", "zebra", "bear", "cow", "sheep", "horse", "bird", "goat", "animal", "duck", "panda", "lamb",
    "deer", "cat", "dog",
)  # fmt: skip
"""Animals of which 'baby' says the age."""


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("concepts", type=Path)
    parser.add_argument("--collection", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lang", choices=("en", "de", "zh"), default="en")
    parser.add_argument("--calibration", type=json.loads, default={}, help="values of Calibration as JSON")
    options = parser.parse_args()
    layer = np.load(options.concepts)
    words = [str(concept) for concept in layer["concepts"]]
    spec = FeatureTable.open(Collection.open(options.collection), BACKBONE).spec
    kept = [n for n, word in enumerate(words) if options.lang == "en" or word in {*things(), *kinds(), PHOTOGRAPH}]
    words = [words[number] for number in kept]
    if options.lang == "en":
        named = names_of(words, read_sentences(options.collection, options.data))
    else:
        named = translated_names(words, options.lang)
    file = ConceptsFile(
        lang=options.lang,
        backbone_sha256=spec.weights_sha256,
        photograph=words.index(PHOTOGRAPH),
        calibration=Calibration(**options.calibration),
        backbone=BACKBONE,
        concepts=tuple(concept_of(word, options.lang) for word in words),
        rates=tuple(min(1.0, round(rate, 5)) for rate in layer["rate"][kept].tolist()),
        names=named,
    )
    options.out.mkdir(parents=True, exist_ok=True)
    values = file.model_dump(mode="json", exclude_defaults=True)
    lines = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
    (options.out / FILE).write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")
    weight, bias = layer["weight"][kept].astype(np.float16), layer["bias"][kept].astype(np.float32)
    gain = layer["gain"][kept].astype(np.float32)
    tensors = {"weight": weight, "bias": bias, "gain": gain}
    if file.calibration.unseen:
        sentences = training_sentences(options.lang, options.collection, options.data)
        plain = [concept.sentence for concept in file.concepts if concept.sentence]
        tensors["trigrams"] = filter_of_trigrams([*sentences, *plain], Tokenizer.load(options.out / "tokenizer.json"))
    save_file(tensors, options.out / WEIGHTS)
    (options.out / WEIGHTS).chmod(0o644)


def training_sentences(lang: str, collection: Path, data: Path) -> list[str]:
    """Return sentences that people wrote, without descriptions of Flickr8k's validation and test splits."""
    if lang == "en":
        return [*read_sentences(collection, data)]
    return [*multi30k_descriptions(data / "multi30k", lang)]


def filter_of_trigrams(sentences: Sequence[str], tokenizer: Tokenizer) -> NDArray[np.uint8]:
    """Return the smallest Bloom filter of the trigrams of sentences of whose bits at most the share `FULL` is set."""
    encoded = [tokenizer.encode(sentence) for sentence in sentences]
    size = 1 << 16
    while True:
        bloom = np.zeros(size, np.uint8)
        for tokens in encoded:
            places, bits = trigram_bits(tokens, size)
            np.bitwise_or.at(bloom, places, bits)
        if np.unpackbits(bloom).mean() <= FULL:
            return bloom
        size *= 2


@functools.cache
def translations(lang: str) -> dict[str, tuple[str, ...]]:
    """Return the names of each thing and kind in German or Chinese, the usual one first, German ones with article."""
    rows = {thing.noun: getattr(thing, lang) for thing in things().values()}
    with Path(__file__).with_name("kinds.tsv").open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines, delimiter="\t"):
            rows.setdefault(row["kind"], tuple(name.strip() for name in row[lang].split(",")))
    return rows


ARTICLES = {"der": "einem", "das": "einem", "die": "einer"}
"""Indefinite article in the dative case of each definite one."""


def noun_and_phrase(name: str) -> tuple[str, str]:
    """Divide 'die Katze' or 'der Bär/von einem Bären' into the noun and what follows 'Ein Foto' in a plain sentence."""
    name, _, phrase = name.partition("/")
    article, _, noun = name.partition(" ")
    if article not in ARTICLES:
        return name, phrase
    return noun, phrase or f"von {ARTICLES[article]} {noun}"


def translated_names(words: Sequence[str], lang: str) -> dict[str, tuple[int, ...]]:
    """Return the concepts of each German or Chinese name."""
    columns: dict[str, set[int]] = defaultdict(set)
    for column, word in enumerate(words):
        for name in translations(lang).get(word, ()):
            columns[noun_and_phrase(name)[0].lower() if lang == "de" else name].add(column)
    return {name: tuple(sorted(found)) for name, found in sorted(columns.items())}


def kinds() -> set[str]:
    """Return the general words of all things."""
    return {kind for thing in things().values() for kind in thing.kinds}


def concept_of(word: str, lang: str) -> Concept:
    """Describe a concept."""
    classes = tuple(classes_of([word])[0])
    if lang != "en":
        return _translated(word, lang).model_copy(update={"classes": classes})
    thing = things().get(word)
    sentence = f"a photo of {with_article(word)}" if thing is not None or word in kinds() else ""
    if word == "person":
        sentence = "a photo of a person"
    kind = thing.kinds[0] if thing is not None and thing.kinds else ""
    return Concept(name=word, kind="" if kind == word else kind, sentence=sentence, classes=classes)


def _translated(word: str, lang: str) -> Concept:
    if word not in translations(lang):
        return Concept(name=word)
    thing = things().get(word)
    kind = translations(lang).get(thing.kinds[0], ("",))[0] if thing is not None and thing.kinds else ""
    noun, sentence = translations(lang)[word][0], f"一张{translations(lang)[word][0]}的照片"
    if lang == "de":
        noun, phrase = noun_and_phrase(noun)
        kind, sentence = noun_and_phrase(kind)[0], f"Ein Foto {phrase}"
    return Concept(name=noun, kind="" if kind == noun else kind, sentence=sentence)


def names_of(words: Sequence[str], sentences: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the concepts of each name."""
    number = {word: column for column, word in enumerate(words)}
    columns: dict[str, set[int]] = defaultdict(set)
    for name, nouns in names().items():
        columns[name] |= {number[noun] for noun in nouns}
    for kind in kinds() - set(things()):
        for form in (kind, many(kind)):
            if form not in columns:
                columns[form].add(number[kind])
    for word in {word for sentence in sentences for word in sentence.split()}:
        base = word if word in number else singular(word)
        if word not in columns and base in number and base != PHOTOGRAPH and base not in things():
            columns[word].add(number[base])
    for animal in YOUNG:
        for form in (animal, many(animal)):
            columns[f"baby {form}"] = columns[form]
    for name in ORANGES:
        columns[name] = {number["orange"]}
    return {name: tuple(sorted(found)) for name, found in sorted(columns.items())} | dict.fromkeys(NO_THINGS, ())


if __name__ == "__main__":
    main()

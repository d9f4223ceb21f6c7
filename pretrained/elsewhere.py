"""Photographs that are not from Flickr8k, on which the confidence is fitted as well.

photographs.tsv names them: the file, where it is from, and the things that a caption may rightly begin with, in
English. They are not in the repository; the evidence about the captions of a run and the verdicts are kept beside it,
as measured-LANG.tsv.

A caption is right if its main thing, the first noun, is one of these things and, where 'and' follows it, the second
noun too. The rest of the sentence is not judged.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from limner.inference.caption_nouns import CaptionNouns
from limner.text.class_nouns import class_nouns
from limner.text.people_words import PEOPLE_WORDS

TABLE = Path(__file__).with_name("photographs.tsv")
GROUPS = {
    "en": "group groups crowd crowds people couple couples family team friends audience band spectators children men "
    "women boys girls kids",
    "de": "Gruppe Menschen Menschenmenge Leute Leuten Paar Familie Team Mannschaft Freunde Zuschauer Kinder Kindern "
    "Männer Männern Frauen Jungen Jungs Personen menschen leute gruppe männer frauen kinder personen",
    "zh": "人们 情侣 朋友 观众 乐队 人",
}
"""Words for several people."""
FEMALE = {
    "en": "woman women lady ladies female females bride girl girls",
    "de": "Frau Frauen Dame Mädchen Braut frau frauen mädchen",
    "zh": "女人 女孩 女孩子 女子 小女孩 女士 新娘",
}
MALE = {
    "en": "man men guy guys gentleman male males groom boy boys",
    "de": "Mann Männer Männern Herr Junge Jungen Jungs Bräutigam mann männer",
    "zh": "男人 男孩 男孩子 男子 小男孩 男士 小伙子 新郎",
}
YOUNG = {
    "en": "boy boys girl girls child children kid kids toddler toddlers baby babies",
    "de": "Junge Jungen Jungs Mädchen Kind Kinder Kindern Kleinkind Baby mädchen kind kinder baby",
    "zh": "男孩 女孩 男孩子 女孩子 小男孩 小女孩 孩子 小孩 小孩子 婴儿 宝宝",
}
SCENES = {
    "street": (
        "street streets road roads city town alley sidewalk",
        "Straße Stadt Gasse Gehweg Weg",
        "街道 街 马路 路 道路",
    ),
    "road": ("road roads street highway path", "Straße Weg Autobahn Landstraße", "路 马路 公路 道路 街道"),
    "sand": ("sand dune desert beach", "Sand Düne Wüste Strand", "沙 沙滩 沙漠"),
    "tree": ("tree trees branch branches forest leaves", "Baum Bäume Bäumen Ast Zweig Wald", "树 树枝 树林 大树"),
    "fork": ("fork forks utensil", "Gabel", "叉子"),
    "room": ("room kitchen office bedroom", "Zimmer Raum Küche Büro Wohnzimmer", "房间 屋子 厨房 办公室"),
    "water": ("water ocean sea lake river waterfall", "Wasser Meer See Fluss Wasserfall", "水 海 大海 湖 河 瀑布 水面"),
    "building": ("building buildings house houses", "Gebäude Haus Häuser Hauses", "建筑 建筑物 房子 大楼 楼房"),
    "house": ("house houses building buildings", "Haus Häuser Gebäude", "房子 建筑 房屋"),
    "field": ("field grass meadow", "Feld Wiese Gras", "田野 草地 田地"),
    "snow": ("snow", "Schnee", "雪 雪地"),
    "sky": ("sky clouds cloud", "Himmel Wolken", "天空 云 云彩"),
    "picture": ("picture painting", "Bild Gemälde", "画 图画 照片"),
    "hand": ("hand hands", "Hand Hände", "手 双手"),
    "toy": ("toy", "Spielzeug Stofftier", "玩具"),
    "truck": ("truck van", "Lastwagen LKW Laster", "卡车"),
}
"""Words in English, German and Chinese of things that are no class."""
LANGUAGES = ("en", "de", "zh")


class Photograph(NamedTuple):
    """A photograph with the things that a caption may begin with."""

    file: str
    source: str
    things: tuple[str, ...]


class Measured(NamedTuple):
    """Evidence about the captions of photographs, and whether their main things are right."""

    of_images: list[dict[str, float]]
    of_captions: list[dict[str, float]]
    right: list[bool]


def photographs() -> list[Photograph]:
    """Read the names of the photographs."""
    with TABLE.open(encoding="utf-8") as lines:
        rows = csv.DictReader(lines, delimiter="\t")
        return [Photograph(row["file"], row["source"], tuple(row["things"].split("|"))) for row in rows]


def accepted(things: Sequence[str], lang: str) -> frozenset[str]:
    """Return all words of some things."""
    found, people = set[str](), set(PEOPLE_WORDS[lang])
    groups, female, male, young = (set(words[lang].split()) for words in (GROUPS, FEMALE, MALE, YOUNG))
    of_person = {
        "people": people,
        "man": people - groups - female - young,
        "woman": people - groups - male - young,
        "boy": people - groups - female - (male - young),
        "girl": people - groups - male - (female - young),
    }
    for thing in things:
        found |= of_person.get(thing, set())
        if thing in SCENES:
            found |= set(SCENES[thing][LANGUAGES.index(lang)].split())
        for english, own in zip(class_nouns("en"), class_nouns(lang), strict=True):
            if english.word == thing or (thing not in of_person and thing in english.words):
                found |= set(own.words)
    return frozenset(found)


def is_right(nouns: CaptionNouns, tokens: Sequence[int], text: str, words: frozenset[str]) -> bool:
    """Whether the main thing of a caption is one of some words, and so is the second one that 'and' adds to it.

    Scenes are not among the known nouns of every language: a caption that begins with one of them is right, too.
    """
    main = nouns.main(tokens)
    spelled = text.split()
    first = next((word for word in spelled if word in words), None)
    if main not in words and (first is None or (main is not None and main in spelled[: spelled.index(first)])):
        return False
    named = [one.word for one in nouns.of_caption(tokens)]
    if main in words and len(named) > 1 and any(f" {main} {join} " in f" {text} " for join in ("and", "und", "和")):
        return named[1] in words
    return True


def write(path: Path, rows: Sequence[Photograph], measured: Measured) -> None:
    """Write measured evidence and verdicts."""
    columns = [*measured.of_images[0], *measured.of_captions[0]]
    with path.open("w", encoding="utf-8") as file:
        file.write("\t".join(["file", "right", *columns]) + "\n")
        for one, image, caption, right in zip(rows, *measured, strict=True):
            values: Mapping[str, float] = {**image, **caption}
            file.write("\t".join([one.file, str(int(right)), *(f"{values[name]:.4g}" for name in columns)]) + "\n")


def read_or_none(path: Path, image_names: Sequence[str]) -> Measured:
    """Read what `write` wrote; no evidence, and a line on stderr, where there is no such file."""
    if path.exists():
        return read(path, image_names)
    print(
        f"{path.name}: not found, so the confidence is fitted without photographs from elsewhere, on the validation "
        "split and on generated images; give their folder with --photographs",
        file=sys.stderr,
    )
    return Measured([], [], [])


def read(path: Path, image_names: Sequence[str]) -> Measured:
    """Read what `write` wrote; `image_names` are the names of the evidence about images."""
    with path.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t"))
    values = [{name: float(value) for name, value in row.items() if name not in ("file", "right")} for row in rows]
    of_images = [{name: one[name] for name in image_names} for one in values]
    return Measured(of_images, values, [row["right"] == "1" for row in rows])

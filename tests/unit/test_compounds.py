"""Compound words are split into their parts and joined again."""

import gzip
import random
from collections import Counter

import pytest

from limner.text.compounds import JOINER, CompoundSettings, CompoundSplitter, join
from limner.text.words import TextSettings, split_words

COUNTS = {
    "Wasser": 30, "Ball": 40, "Fußball": 6, "Spieler": 20, "Ballspieler": 5,
    "Geburt": 7, "Tag": 30, "Tage": 9, "Stadt": 12,
    "groß": 8, "Groß": 3, "blaue": 25, "hell": 5, "spielt": 50, "Ende": 9, "Spiel": 9, "Meer": 5, "Luft": 5,
    "rare": 4, "1234": 9,
}  # fmt: skip


def learned(counts=COUNTS, **settings):
    return CompoundSplitter.learn(counts, CompoundSettings(**settings))


@pytest.mark.parametrize(
    ("word", "tokens"),
    [
        ("Wasserball", "Wasser ￭ Ball"),
        ("Fußballspieler", "Fußball ￭ Spieler"),
        ("Geburtstage", "Geburt ￭s Tage"),
        ("Meeresluft", "Meer ￭es Luft"),
        ("Luftwasserball", "Luft ￭ Wasser ￭ Ball"),
        ("Großstadt", "groß ￭ Stadt"),
        ("hellblaue", "hell ￭ blaue"),
    ],
)
def test_a_compound_is_split_into_independent_words(word, tokens):
    assert " ".join(learned().split(word)) == tokens
    assert join(tokens.split()) == [word]


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("Ballspieler", "seen max_count times"),
        ("Geburtstag", "'Tag' is shorter than min_size"),
        ("luftrare", "'rare' is rarer than min_count"),
        ("Wasserbaum", "a part is unknown"),
        ("Wassernball", "'n' links nothing"),
        ("spielende", "no noun ends a word written small"),
        ("Ballspielt", "no verb ends a word with a capital"),
        ("WASSERBALL", "joining writes one capital"),
        ("Wasser-Ball", "not of letters only"),
        ("12341234", "not of letters only"),
        ("sWasser", "nothing before the linking letter"),
        ("Wassers", "nothing after the linking letter"),
        (("Wasser" * 17).capitalize(), "too long to be a word"),
        ("", "nothing to cut"),
    ],
)
def test_words_that_are_not_split(word, why):
    assert learned().split(word) == (word,), why


def test_the_settings_limit_the_splits():
    assert len(learned().split(("Wasser" * 16).capitalize())) == 31
    assert learned(min_size=3).split("Geburtstag") == ("Geburt", "￭s", "Tag")
    assert learned(min_count=4).split("luftrare") == ("Luft", "￭", "rare")
    assert learned(min_count=41, max_count=41).split("Wasserball") == ("Wasserball",)
    assert learned(max_count=6).split("Ballspieler") == ("Ball", "￭", "Spieler")
    assert learned(max_count=7, fillers=("", "n")).split("Wassernball") == ("Wasser", "￭n", "Ball")
    assert CompoundSplitter.learn(COUNTS, CompoundSettings()).settings == CompoundSettings(
        min_size=4, min_count=5, max_count=5, fillers=("", "s", "es")
    )


@pytest.mark.parametrize(
    ("counts", "word", "parts"),
    [
        # (960 · 710)^½ = 825.6 and (5 · 710)^½ = 59.6 and (224 · 1 · 710)^⅓ = 54.2 are all below 852.
        ({"aktionsplan": 852, "aktion": 960, "aktions": 5, "akt": 224, "ion": 1, "plan": 710}, "aktionsplan", 1),
        # With a rarer whole word the first of them would win.
        ({"aktionsplan": 825, "aktion": 960, "aktions": 5, "akt": 224, "ion": 1, "plan": 710}, "aktionsplan", 2),
        # (885 · 1864)^½ = 1284.4 is above 556, right or wrong.
        ({"freitag": 556, "frei": 885, "tag": 1864}, "freitag", 2),
    ],
)
def test_the_examples_of_koehn_and_knight(counts, word, parts):
    tokens = learned(counts, min_size=3, min_count=1, max_count=10_000).split(word)
    assert len([token for token in tokens if JOINER not in token]) == parts


def test_among_equal_means_the_fewest_parts_win():
    counts = {"abcdefgh": 9, "abcd": 3, "efgh": 27}
    assert learned(counts, min_count=1, max_count=99).split("abcdefgh") == ("abcdefgh",)
    assert learned(counts | {"efgh": 28}, min_count=1, max_count=99).split("abcdefgh") == ("abcd", "￭", "efgh")


def test_a_part_has_its_most_frequent_spelling():
    counts = {"Band": 6, "band": 5, "BAND": 1, "Wand": 5, "wand": 5}
    for order in (counts, dict(reversed(counts.items()))):
        splitter = learned(order)
        assert splitter.words == {"band": ("Band", 6), "wand": ("Wand", 5)}
        assert splitter.split("Wandband") == ("Wand", "￭", "Band")


def test_joining_restores_every_word():
    draw = random.Random(1)
    stems = ["haus", "Haus", "tür", "Tür", "straße", "Straße", "öl", "İz", "ǅep", "ﬁsch", "ß", "DJ", "s", "es", "日本"]
    cases = [str.capitalize] * 4 + [str, str.lower, str.upper, str.swapcase]
    cut = 0
    for _ in range(100):
        counts = {draw.choice(cases)(stem): draw.randint(1, 9) for stem in stems * 2}
        splitter = learned(counts, min_size=1, min_count=draw.randint(1, 3), max_count=99)
        words = [draw.choice(cases)("".join(draw.choices(stems, k=draw.randint(1, 5)))) for _ in range(40)]
        for word in words:
            tokens = splitter.split(word)
            cut += len(tokens) > 1
            assert join(tokens) == [word]
            assert all(JOINER not in token for token in tokens[::2])
            assert set(tokens[1::2]) <= set(splitter.joiners)
        assert join(token for word in words for token in splitter.split(word)) == words
    assert cut > 200


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ("", ""),
        ("￭", ""),
        ("￭ Ball", "Ball"),
        ("Ball ￭s", "Ball"),
        ("ein Ball ￭ ￭s Spiel .", "ein Ballsspiel ."),
        ("<unk> ￭ Spieler", "<unk>spieler"),
        ("groß ￭ <unk>", "groß<unk>"),
        ("Ball ￭ blau", "ballblau"),
        ("der ￭x Ball", "Derxball"),
    ],
)
def test_any_token_sequence_is_joined_to_words(tokens, words):
    assert " ".join(join(tokens.split())) == words


@pytest.mark.real
@pytest.mark.parametrize("lowercase", [True, False])
def test_real_german_is_split_and_restored(real_data, lowercase):
    with gzip.open(real_data / "multi30k/task1/train.de.gz", "rt", encoding="utf-8") as lines:
        settings = TextSettings(lang="de", lowercase=lowercase)
        counts = Counter(word for line in lines for word in split_words(line, settings))
    splitter = learned(counts)
    tokens = {word: splitter.split(word) for word in counts}
    assert all(join(cut) == [word] for word, cut in tokens.items())
    assert len({token for cut in tokens.values() for token in cut}) < 0.9 * len(counts)
    word, cut = ("holzzauns", "holz ￭ zauns") if lowercase else ("Holzzauns", "Holz ￭ Zauns")
    assert " ".join(tokens[word]) == cut

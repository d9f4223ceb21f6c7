"""Any bytes in place of a file of a source give a result or one line of error.

FUZZ_EXAMPLES, which `make fuzz` sets, is the number of mutations that each target is read with, drawn anew every time.
"""

import os
import shutil
import tempfile
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mutation import mutate_folder
from sources import SOURCES, read
from targets import TARGETS

from limner.data.readers import READERS
from limner.errors import LimnerError
from limner.features.encoders.logmel import LogMelBackbone

FUZZED = "FUZZ_EXAMPLES" in os.environ
MUTATIONS = settings(
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", "12")), deadline=20_000 if FUZZED else None, derandomize=not FUZZED
)
IN_MEMORY = ("recipe", "image", "audio", "embeddings")
MADE_IN_NO_TIME = (*(f"reader-{kind}" for kind in SOURCES), *IN_MEMORY)
FUZZED_TARGETS = tuple(TARGETS) if FUZZED else MADE_IN_NO_TIME
ITEMS = {
    "flickr": {"a": "test", "b": "train"},
    "multi30k": {"10": "train", "20": "train", "30": "val"},
    "coco": {"a": "val", "b": "val"},
    "karpathy": {"a": "val", "b": "val"},
    "iapr": {"25": "train"},
    "visual-genome": {"1": "train"},
    "flickr30k-entities": {"77": "train"},
    "jsonl": {"a": "train", "b": "train"},
    "csv": {"a": "train", "b": "val"},
    "webdataset": {"a": "train", "b": "train"},
    "parquet": {"a": "train", "b": "train"},
    "datasets": {"a": "train", "b": "train"},
    "folder": dict.fromkeys("abc", "train"),
    "audio": {"a": "train", "b": "train"},
    "imdb": {f"{split}/{name}": split for split in ("train", "test") for name in ("neg/0_2", "pos/0_9")},
    "rt-polarity": dict.fromkeys(("neg-00001", "neg-00002", "pos-00001", "pos-00002"), "train"),
}
"""Split of each item of an example, by the kind of the source."""
TEXTS = {
    **{kind: len(items) for kind, items in ITEMS.items()},
    **{"flickr": 4, "multi30k": 6, "iapr": 4, "flickr30k-entities": 2, "folder": 6},
}
"""Number of sentences and descriptions of regions of an example."""


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    """A valid example of each target that is fuzzed."""
    folder = tmp_path_factory.mktemp("examples")
    for name in FUZZED_TARGETS:
        TARGETS[name].make(folder / name)
    return folder


def test_every_reader_has_an_example():
    assert SOURCES.keys() == READERS.keys()


@pytest.mark.parametrize("kind", SOURCES)
def test_the_texts_of_every_example_are_read(examples, kind):
    items = read(kind, examples / f"reader-{kind}")
    texts = [text.text for item in items for text in (*item.sentences, *item.regions)]
    assert {item.id: item.split for item in items} == ITEMS[kind]
    assert len(texts) == TEXTS[kind] and all(texts)


def test_the_examples_of_single_files_are_read(examples):
    recipe, images, sounds, embeddings = (TARGETS[name].read(examples / name) for name in IN_MEMORY)
    assert recipe[0].model.hidden_dim == 8
    assert images == [size for size in [(20, 10)] * 7 + [(9, 9), (5, 9), (9, 5)] for _ in range(2)]
    assert [features.shape for features in sounds] == [(LogMelBackbone().specs[0].shape)] * 2
    assert [vectors if isinstance(vectors, int) else set(vectors) for vectors in embeddings] == [3, {"ball", "dog"}] * 3


@pytest.mark.timeout(0 if FUZZED else 300)
@pytest.mark.parametrize("name", FUZZED_TARGETS)
@MUTATIONS
@given(number=st.integers(0, 2**32))
def test_mutated_files_are_read_or_explained_in_one_line(examples, name, number):
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(shutil.copytree(examples / name, Path(temporary) / "input"))
        mutate_folder(copy, Random(number))
        try:
            TARGETS[name].read(copy)
        except LimnerError as error:
            assert str(error) and "\n" not in str(error)

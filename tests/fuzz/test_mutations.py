"""Any bytes in place of a file of a source give a result or one line of error."""

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

QUICK = settings(max_examples=12, deadline=None, derandomize=True)
IN_MEMORY = ("recipe", "image", "audio", "embeddings")


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    """A valid example of each target that is made in no time."""
    folder = tmp_path_factory.mktemp("examples")
    for name in (*(f"reader-{kind}" for kind in SOURCES), *IN_MEMORY):
        TARGETS[name].make(folder / name)
    return folder


def test_every_reader_has_an_example():
    assert SOURCES.keys() == READERS.keys()


@pytest.mark.parametrize("name", [*(f"reader-{kind}" for kind in SOURCES), *IN_MEMORY])
def test_an_example_is_read(examples, name):
    TARGETS[name].read(examples / name)


@pytest.mark.parametrize("name", [*(f"reader-{kind}" for kind in SOURCES), *IN_MEMORY])
@QUICK
@given(number=st.integers(0, 2**32))
def test_mutated_files_are_read_or_explained_in_one_line(examples, name, number):
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(shutil.copytree(examples / name, Path(temporary) / "input"))
        mutate_folder(copy, Random(number))
        try:
            TARGETS[name].read(copy)
        except LimnerError as error:
            assert str(error) and "\n" not in str(error)


@pytest.mark.parametrize("kind", SOURCES)
@QUICK
@given(data=st.data())
def test_any_bytes_are_read_or_explained_in_one_line(examples, kind, data):
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(shutil.copytree(examples / f"reader-{kind}", Path(temporary) / "input"))
        texts = [path for path in sorted(copy.rglob("*")) if path.is_file() and path.suffix not in (".jpg", ".png")]
        data.draw(st.sampled_from(texts)).write_bytes(data.draw(st.binary(max_size=80)))
        try:
            read(kind, copy)
        except LimnerError as error:
            assert str(error) and "\n" not in str(error)

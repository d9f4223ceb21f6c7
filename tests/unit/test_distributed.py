"""Parts of the work on a cluster that need none: the journal, fragments and their commit, addresses."""

import importlib.util
import pickle
import re
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

from limner.apps.distributed.cluster import Journal, _unit_error, connected, locked_journal, require_folder
from limner.apps.distributed.driver import _Actor
from limner.apps.distributed.sentences import CaptionJob, describe_distributed
from limner.errors import MediaError, MissingExtraError, ResourceError, SettingsError
from limner.features.spec import FeatureSpec
from limner.features.store import FeatureTable
from limner.features.tables import FragmentWriter, commit_fragments, data_files, remove_uncommitted
from limner.inference.captioner import Captioner

SPEC = FeatureSpec(name="t", kind="pooled", shape=(4,), backbone="none", preprocessing={}, weights_sha256="")


@pytest.mark.parametrize("collection", ["s3://bucket/c", Path("s3:/bucket/c")])
def test_a_collection_in_an_object_store_is_refused(collection):
    with pytest.raises(SettingsError, match=r"s3://bucket/c: --ray needs a collection in a folder .*leave out --ray"):
        require_folder(collection)


def test_an_actor_without_memory_is_one_line_of_error_and_goes_on(monkeypatch):
    monkeypatch.setattr("limner.process.keep_freed_memory", lambda: None)
    actor = _Actor(pickle.dumps(Failing(MemoryError(), unit=1)))
    outcomes = [actor({"unit": [unit]}) for unit in range(3)]
    assert [outcome["error"][0] == "" for outcome in outcomes] == [True, False, True]
    error = _unit_error(outcomes[1]["kind"][0], outcomes[1]["error"][0])
    assert isinstance(error, ResourceError)
    assert re.fullmatch(r"--ray: the memory of .* is not enough .*finished units are kept: .*again", str(error))


def fragment(path, *ids):
    writer = FragmentWriter(path, SPEC)
    writer.add(ids, np.full((len(ids), 4), len(ids), np.float16))
    writer.flush()
    return writer.fragments


@pytest.fixture
def path(tmp_path):
    return tmp_path / "t.lance"


def test_fragments_are_no_rows_before_their_commit_and_committed_once(path):
    first, second = fragment(path, "a", "b"), fragment(path, "c")
    assert not (path / "_versions").exists()
    assert commit_fragments(path, SPEC, first) == 0
    assert FeatureTable(path).ids() == ["a", "b"]
    assert commit_fragments(path, SPEC, [*first, *second]) == 0  # after an interruption
    assert FeatureTable(path).ids() == ["a", "b", "c"]
    later = fragment(path, "d")  # written to a table that exists
    commit_fragments(path, SPEC, later)
    np.testing.assert_array_equal(FeatureTable(path).take(["d", "a"]), [[1] * 4, [2] * 4])


def test_a_fragment_whose_file_is_missing_is_counted_and_left_out(path):
    lost, kept = fragment(path, "a", "b"), fragment(path, "c")
    (path / "data" / lost[0]["files"][0]["path"]).unlink()
    assert commit_fragments(path, SPEC, [*lost, *kept]) == 2
    assert FeatureTable(path).ids() == ["c"]


def test_files_of_unfinished_units_are_removed_and_earlier_ones_kept(path):
    fragment(path, "earlier")
    before = data_files(path)
    finished = fragment(path, "a")
    fragment(path, "b")
    (path / "data" / ".tmp-of-a-killed-writer").touch()
    commit_fragments(path, SPEC, finished)
    remove_uncommitted(path, before)
    assert set(data_files(path)) == {*before, finished[0]["files"][0]["path"]}


def test_a_journal_continues_the_same_plan_only(tmp_path):
    folder = tmp_path / "units"
    journal = Journal.begin(folder, {"inputs": 1})
    journal.write(3, {"value": 0.1 + 0.2})
    journal.write(0, {"value": 1})
    again = Journal.begin(folder, {"inputs": 1})
    assert list(again.results()) == [{"value": 1}, {"value": 0.1 + 0.2}]
    assert again.read(1) is None
    other = Journal.begin(folder, {"inputs": 2})
    assert list(other.results()) == []
    journal.write(5, {"value": 5})  # of a machine that was believed lost, and belongs to the first computation
    assert other.read(5) is None
    with pytest.raises(ResourceError, match="share"):
        other.require(5)


def test_a_damaged_result_is_computed_again(tmp_path):
    journal = Journal.begin(tmp_path / "units", {})
    journal.write(0, {"value": 1})
    (tmp_path / "units" / "0.json").write_bytes(b"{")
    assert journal.read(0) is None


@pytest.mark.parametrize(
    ("address", "error", "message"),
    [
        *((address, SettingsError, "HOST:PORT") for address in ("", "host", "host:port", ":1", "host:99999")),
        ("127.0.0.1:1", ResourceError, r"127\.0\.0\.1:1: no Ray cluster answers"),
    ],
)
def test_addresses_without_a_cluster_are_refused(address, error, message, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    with pytest.raises(error, match=message), connected(address):
        pass


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="scale"), connected("local"):
        pass


def test_a_cluster_is_refused_where_it_has_no_effect(command_line, tmp_path):
    (tmp_path / "photo.jpg").touch()
    status, _, errors = command_line("describe", tmp_path / "photo.jpg", "--ray", "local")
    assert status == 1 and "--ray" in errors


class Failing(NamedTuple):
    """A job with a unit that raises an error."""

    error: Exception
    unit: int

    def open(self):
        def compute(unit):
            if unit == self.unit:
                raise self.error

        return compute


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MediaError("a.jpg: damaged"), "a.jpg: damaged"),
        (OSError(28, "No space left on device", "/data/c"), "/data/c: No space left on device"),
    ],
)
def test_an_error_of_a_unit_is_raised_as_it_was(error, message):
    outcome = _Actor(pickle.dumps(Failing(error, unit=3)))({"unit": [3]})
    assert outcome["unit"] == [3]
    raised = _unit_error(outcome["kind"][0], outcome["error"][0])
    assert isinstance(raised, type(error))
    assert message in str(raised)


def test_an_error_of_the_program_names_its_place():
    outcome = _Actor(pickle.dumps(Failing(KeyError("pooled"), unit=3)))({"unit": [3]})
    raised = _unit_error(outcome["kind"][0], outcome["error"][0])
    assert type(raised) is RuntimeError
    assert "unit 3" in str(raised) and Path(__file__).name in str(raised) and "KeyError: 'pooled'" in str(raised)


def test_captions_of_a_file_that_has_changed_are_computed_again(monkeypatch, tmp_path):
    read = []

    def describe_each(files, **options):
        read.extend(file.name for file in files)
        return [(file, MediaError(file.read_text())) for file in files]

    monkeypatch.setattr(Captioner, "load", lambda *runs, **options: SimpleNamespace(describe_each=describe_each))
    for name in "ab":
        (tmp_path / name).write_text("damaged")
    journal = Journal.begin(tmp_path / "units", {})
    job = CaptionJob((tmp_path,), {}, ("a", "b"), tmp_path, {"batch_size": 1}, None, journal)
    compute = job.open()
    compute(0), compute(1)
    (tmp_path / "b").write_text("mended")
    compute(0), compute(1)
    assert read == ["a", "b", "b"]
    assert [result["results"] for result in journal.results()] == [["damaged"], ["mended"]]


def test_two_computations_do_not_share_a_journal(tmp_path):
    (tmp_path / "model.safetensors").touch()
    folder = tmp_path / ".captions.units"
    options = {"options": {"batch_size": 1}, "loading": {}}
    captions = describe_distributed([tmp_path], [tmp_path / "a.jpg"], "local", **options)
    with locked_journal(folder), pytest.raises(ResourceError, match=r"units: another process is writing to it"):
        list(captions)
    assert not folder.exists()

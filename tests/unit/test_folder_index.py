"""Indexes of folders: what an update reads, describes and keeps, and what a search finds."""

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from colour_searcher import COLOURS, ColourSearcher, FolderIndex
from PIL import Image

import limner
from limner.apps.photos import update as updating
from limner.apps.photos.index import REBUILT
from limner.apps.photos.index import FolderIndex as BuiltInFolderIndex
from limner.data.examples import Example, ImageFeatures, collate
from limner.errors import FolderError, RunError, SettingsError
from limner.files import locked
from limner.inference.image_searcher import ImageSearcher, JointSpace
from limner.runs.concepts import Concepts
from limner.runs.pretrained import pretrained_languages, pretrained_run

PHOTOGRAPHS = Path(__file__).parents[2] / "docs" / "assets" / "photographs"


@pytest.fixture
def folder(tmp_path):
    """One photograph of each colour, an hour old, two of them in a folder inside."""
    for number, (name, colour) in enumerate(COLOURS.items()):
        save(tmp_path / ("inside" if number > 1 else "") / f"{name}.png", colour)
    return tmp_path


def save(path, colour, size=(90, 70)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    hour_ago = time.time() - 3600
    os.utime(path, (hour_ago, hour_ago))


def test_search_finds_the_image_that_the_sentence_describes(folder, captioner):
    index = FolderIndex(folder)
    assert index.update(captioner).described == 4
    for colour in COLOURS:
        best = FolderIndex.open(folder).search(f"a {colour} wall", 2)[0]
        assert (best.path.stem, best.caption) == (colour, captioner.describe([best.path])[0][0].text)
        assert index.thumbnail(best.path)[:2] == b"\xff\xd8" and "bytes" not in str(best)


def test_an_update_reads_only_what_has_changed(folder, captioner, monkeypatch):
    index = FolderIndex(folder)
    index.update(captioner)
    save(folder / "new.png", (20, 250, 250))
    save(folder / "red.png", (250, 20, 250), size=(91, 70))
    (folder / "inside" / "blue.png").rename(folder / "inside" / "renamed.png")
    (folder / "green.png").unlink()
    update = index.update(captioner)
    assert (update.added, update.changed, update.moved, update.removed) == (1, 1, 1, 1)
    assert (update.unchanged, update.described, update.files) == (1, 2, 4)
    again = index.update(captioner)
    assert (again.unchanged, again.described, again.removed) == (4, 0, 0)


def test_an_unchanged_folder_needs_no_model(folder, trained, monkeypatch, command_line):
    def run(*options):
        return command_line("index", folder, "--model", trained, *options)[:2]

    def refuse(*_, **__):
        raise AssertionError("a model is loaded")

    assert f"the index is in {folder / '.limner'}" in command_line("index", folder, "--model", trained)[2]
    load = limner.Captioner.load
    monkeypatch.setattr(limner.Captioner, "load", refuse)
    status, printed = run("--json")
    assert (status, json.loads(printed)["unchanged"]) == (0, 4)
    monkeypatch.setattr(limner.Captioner, "load", load)
    (folder / "green.png").unlink()
    assert "3 images (1 removed, 3 unchanged)" in run()[1]
    save(folder / "red.png", (250, 20, 250), size=(91, 70))
    assert "3 images (1 changed, 2 unchanged)" in run()[1]


def test_a_run_with_other_files_is_compared_by_its_model(folder, captioner, trained, trained_on_colours):
    index = FolderIndex(folder)
    index.update(captioner)
    assert index.find_unchanged(trained) is not None
    assert index.find_unchanged(trained_on_colours) is None
    (folder / "broken.png").write_bytes(b"no image")
    index.update(captioner)
    assert index.find_unchanged(trained) is None  # it is tried again


def test_files_that_a_killed_write_left_are_removed(folder, captioner, trained, monkeypatch):
    index = FolderIndex(folder)
    monkeypatch.setattr("limner.apps.photos.tables.end_update", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        index.update(captioner)
    leftovers = [index.path / name / "data" / ".tmpWwO8bX" for name in ("files.lance", "images.lance")]
    for leftover in leftovers:
        leftover.write_bytes(b"half a file")
    assert index.find_unchanged(trained) is None
    monkeypatch.undo()
    index.update(captioner)
    assert not any(leftover.exists() for leftover in leftovers)
    assert index.find_unchanged(trained) is not None


@pytest.fixture
def of_colours(trained_on_colours, backbone_of):
    return limner.Captioner([limner.load_trained_model(trained_on_colours)], backbone_of())


def test_an_index_of_another_model_is_refused(folder, captioner, of_colours):
    index = FolderIndex(folder)
    index.update(captioner)
    with pytest.raises(FolderError, match=r"not the captioner .*--rebuild"):
        index.update(of_colours)
    assert index.update(of_colours, rebuild=True).described == 4


def test_an_interrupted_rebuild_keeps_the_old_index(folder, captioner, of_colours):
    index = FolderIndex(folder)
    index.update(captioner)
    record, captions = index.record, {match.path: match.caption for match in index.search("a red wall", 9)}

    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        index.update(of_colours, interrupt, rebuild=True)
    opened = FolderIndex.open(folder)
    assert opened.record == record and not record.updating
    assert {match.path: match.caption for match in opened.search("a red wall", 9)} == captions
    assert index.update(captioner).unchanged == 4
    index.update(of_colours, rebuild=True)
    assert opened.record.captioner != record.captioner and len(opened) == 4
    assert not (index.path / REBUILT).exists()


def files_of(index):
    return sorted(str(match.path.relative_to(index.folder)) for match in index.search("a red wall", 99))


def test_unreadable_files_are_counted_and_tried_again(folder, captioner):
    (folder / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (folder / "empty.jpg").touch()
    (folder / "text.jpg").write_text("no image")
    index = FolderIndex(folder)
    update = index.update(captioner)
    assert (update.files, sorted(update.unreadable)) == (4, ["broken.png", "empty.jpg", "text.jpg"])
    assert len(index) == 4
    save(folder / "broken.png", (20, 250, 20))
    update = index.update(captioner)
    assert (update.files, sorted(update.unreadable)) == (5, ["empty.jpg", "text.jpg"])


def test_names_of_any_bytes(folder, captioner):
    names = ["line\nfeed.png", "quote'\".png", os.fsdecode(b"latin-\xe4.png"), "帝.png", "e\u0301.png"]
    for name in names:
        save(folder / name, COLOURS["red"], size=(20 + len(name), 20))
    index = FolderIndex(folder)
    assert index.update(captioner).added == 9
    assert set(names) <= set(files_of(index))
    assert index.update(captioner).unchanged == 9


def test_what_is_no_image_of_the_folder_is_skipped(folder, captioner):
    save(folder / ".hidden" / "a.png", COLOURS["red"])
    save(folder / ".b.png", COLOURS["red"])
    (folder / "loop").symlink_to(folder)
    (folder / "nowhere.png").symlink_to(folder / "missing.png")
    os.mkfifo(folder / "pipe.png")
    save(folder / "own index" / "c.png", COLOURS["red"])
    index = FolderIndex(folder, folder / "own index")
    assert index.update(captioner).files == 4
    assert index.update(captioner, recursive=False).removed == 2


def test_the_same_content_is_described_once_and_found_twice(folder, captioner):
    (folder / "copy.png").write_bytes((folder / "red.png").read_bytes())
    index = FolderIndex(folder)
    update = index.update(captioner)
    assert (update.files, update.described) == (5, 4)
    assert {match.path.name for match in index.search("a red wall", 2)} == {"red.png", "copy.png"}
    (folder / "red.png").unlink()
    assert index.update(captioner).described == 0
    assert index.search("a red wall", 1)[0].path.name == "copy.png"


@pytest.mark.parametrize(("before", "after"), [(-3600, -(10**9)), (9000, 9000)])
def test_a_change_is_seen_where_the_file_is_older_or_of_the_future(before, after, folder, captioner):
    now, index = time.time(), FolderIndex(folder)
    os.utime(folder / "red.png", (now + before,) * 2)
    index.update(captioner)
    save(folder / "red.png", COLOURS["blue"])
    os.utime(folder / "red.png", (now + after,) * 2)
    assert index.update(captioner).changed == 1


def test_verify_finds_a_change_that_size_and_time_hide(folder, captioner):
    path = folder / "red.bmp"
    save(path, COLOURS["red"])
    index = FolderIndex(folder)
    index.update(captioner)
    save(path, COLOURS["blue"])
    os.utime(path, (path.stat().st_mtime, 0))
    facts = path.stat()
    index.update(captioner)
    save(path, COLOURS["green"])
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert index.update(captioner).changed == 0
    assert index.update(captioner, verify=True).changed == 1


def test_a_file_that_vanishes_while_it_is_read_is_left_out(folder, captioner, monkeypatch):
    read = updating.read_image_file

    def vanish(place, path, *rest):
        if path == "red.png":
            (place / path).unlink()
        return read(place, path, *rest)

    monkeypatch.setattr(updating, "read_image_file", vanish)
    update = FolderIndex(folder).update(captioner)
    assert (update.files, update.unreadable) == (3, {})


def test_an_interrupted_update_goes_on_where_it_ended(folder, captioner, monkeypatch):
    for number in range(6):
        save(folder / f"{number}.png", (40 * number, 9, 9))
    monkeypatch.setattr(updating, "CHUNK_SIZE", 2)
    described = []

    def interrupt(done, total):
        described.append(done)
        if done == 6:
            raise KeyboardInterrupt

    index = FolderIndex(folder)
    with pytest.raises(KeyboardInterrupt):
        index.update(captioner, interrupt)
    assert index.update(captioner).described == 4
    assert len(index) == 10


def test_a_folder_that_seems_empty_keeps_its_index(folder, captioner, tmp_path_factory):
    place = tmp_path_factory.mktemp("index")
    index = FolderIndex(folder, place)
    index.update(captioner)
    for path in folder.rglob("*.png"):
        path.unlink()
    with pytest.raises(FolderError, match="no image in this folder; nothing was changed"):
        index.update(captioner)
    assert len(index) == 4


def test_files_below_a_folder_that_cannot_be_listed_stay(folder, captioner, monkeypatch):
    index = FolderIndex(folder)
    index.update(captioner)
    listed = os.scandir

    def refuse(path):
        if str(path).endswith("inside"):
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(updating.os, "scandir", refuse)
    update = index.update(captioner)
    assert (update.removed, update.unreadable) == (0, {"inside": "Permission denied"})
    assert len(index) == 4


def test_two_updates_at_once_are_refused(folder, captioner):
    index = FolderIndex(folder)
    index.update(captioner)
    with locked(index.path, FolderError), pytest.raises(FolderError, match="another process is writing"):
        index.update(captioner)


@pytest.mark.parametrize("name", ["index.json", "files.lance", "images.lance"])
def test_damage_is_found(name, folder, captioner):
    index = FolderIndex(folder)
    index.update(captioner)
    files = [index.path / name] if name == "index.json" else list((index.path / name / "data").glob("*"))
    for path in files:
        data = bytearray(path.read_bytes())
        data[10 : len(data) - 40 : 7] = b"\xa5" * len(data[10 : len(data) - 40 : 7])
        path.write_bytes(data)
    with pytest.raises(FolderError, match=r"damaged.*--rebuild"):
        FolderIndex.open(folder).search("a red wall")
    assert index.update(captioner, rebuild=True).described == 4


def test_an_image_whose_features_are_not_finite_does_not_stop_the_others(folder, captioner, monkeypatch):
    save(folder / "copy.png", COLOURS["green"])
    features_of = ColourSearcher.features_of

    def infinite_in_green(searcher, images):
        if any((image == COLOURS["green"]).all() for image in images):
            raise RunError("the grid features are not finite")
        return features_of(searcher, images)

    monkeypatch.setattr(ColourSearcher, "features_of", infinite_in_green)
    index = FolderIndex(folder)
    update = index.update(captioner)
    assert (update.files, update.described, sorted(update.unreadable)) == (3, 3, ["copy.png", "green.png"])
    assert all("not finite" in reason for reason in update.unreadable.values())
    monkeypatch.undo()
    update = index.update(captioner)
    assert (update.files, update.described, update.unreadable) == (5, 1, {})


def test_cut_off_captions_are_logged_once_an_update(folder, captioner, monkeypatch, caplog):
    monkeypatch.setattr(updating, "CHUNK_SIZE", 1)
    describe = type(captioner).describe

    def cut_off(self, *args, **options):
        return describe(self, *args, max_length=1, **options)

    monkeypatch.setattr(type(captioner), "describe", cut_off)
    FolderIndex(folder).update(captioner)
    (message,) = [record.getMessage() for record in caplog.records if "cut off" in record.getMessage()]
    assert message.startswith("4 of 4 captions were cut off")


def test_a_withheld_caption_is_stored_with_its_confidence(folder, of_colours, colour_concepts, monkeypatch):
    monkeypatch.setattr(of_colours, "rules", colour_concepts(**dict.fromkeys(COLOURS, 30)))
    index = FolderIndex(folder)
    index.update(of_colours)
    matches = index.search("a red wall", 4)
    assert all(not match.is_sure and match.caption == "" and match.confidence < 0.01 for match in matches)
    monkeypatch.setattr(of_colours, "rules", colour_concepts())
    index.update(of_colours, rebuild=True)
    assert [match.is_sure for match in index.search("a red wall", 1)] == [True]


@pytest.mark.parametrize(("query", "name"), [("a cat", "cat"), ("a rocket in the sky", "rocket"), ("coffee", "coffee")])
def test_the_built_in_searcher_finds_photographs(query, name, photographs):
    assert photographs.search(query, 1)[0].path.stem == name


def test_similar_photographs_are_found_by_a_photograph_without_itself(photographs):
    best, second = photographs.similar((PHOTOGRAPHS / "cat.jpg").read_bytes(), 2)
    assert best.path.stem == "cat" and best.score == pytest.approx(1, abs=1e-3) and second.score < 0.8
    assert [match.path for match in photographs.similar(PHOTOGRAPHS / "cat.jpg", 1)] == [second.path]


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """The index of the photographs of the README, with the built-in captioner."""
    index = BuiltInFolderIndex(PHOTOGRAPHS, tmp_path_factory.mktemp("index"))
    assert index.update(limner.load()).described == 4
    return index


def test_a_captioner_without_a_folder_is_refused(folder, captioner):
    ensemble = limner.Captioner([captioner.models[0]] * 2, captioner.backbone)
    with pytest.raises(FolderError, match="one folder"):
        FolderIndex(folder).update(ensemble)


def test_features_of_another_searcher_are_refused(folder, captioner):
    FolderIndex(folder).update(captioner)
    other = ColourSearcher()
    other.digest = "other colours"
    for use in (FolderIndex.open, lambda *_: FolderIndex(folder, None, other).update(captioner)):
        with pytest.raises(FolderError, match="another backbone"):
            use(folder, None, other)


@pytest.mark.parametrize(
    ("lang", "query", "message"),
    [
        ("en", " ", "no words"),
        ("en", "of the", "function words only"),
        ("en", "a dogg", r"English \(en\).* 'dogg', not in the vocabulary; did you mean 'dog'"),
        ("en", "ein Hund", r"search in German \(de\) with a model or an index of this language"),
        ("de", "the beach in snow", r"German \(de\).* 'the', 'beach', 'snow', not in"),
        ("zh", "在一只", "function words only"),
    ],
)
def test_a_query_without_a_known_content_word_is_refused(lang, query, message):
    with pytest.raises(SettingsError, match=message):
        ImageSearcher(lang).scores(query, np.ones((1, 1280)), np.ones((1, 3)))


def test_a_query_for_what_no_image_shows_is_logged(photographs, caplog):
    for query in ("a cat", "a cat and a piano"):
        assert photographs.search(query)[0].path.name == "cat.jpg" and not caplog.records
    assert photographs.search("a piano")
    assert [record.message for record in caplog.records] == [
        "nothing in 'a piano' is recognised for sure in an image; the closest images follow"
    ]


def test_unknown_words_are_named_and_left_out(photographs, caplog):
    expected = [match[:2] for match in photographs.search("cat")]
    assert [match[:2] for match in photographs.search("cat xylograph")] == expected
    assert [record.message.split(";")[0] for record in caplog.records] == [
        "'xylograph' is not in the English (en) vocabulary"
    ]


@pytest.mark.parametrize("lang", pretrained_languages())
def test_the_joint_space_is_the_two_tower_model(lang):
    run = pretrained_run(lang) / "joint"
    model, joint = limner.load_trained_model(run), JointSpace.load(run)
    sentences = {"en": ["a dog on the beach", "two cats"], "de": ["ein Hund am Strand"], "zh": ["一只狗在草地上"]}[lang]
    batch = collate([Example("", model.tokenizer.encode(text)) for text in sentences])
    pooled = np.random.default_rng(3).gamma(1, size=(5, 1280)).astype(np.float32)
    image = ImageFeatures(torch.ones(5, dtype=torch.bool), pooled=torch.from_numpy(pooled))
    with torch.inference_mode():
        expected = model.model.pair_scores(image, batch).numpy()
    vectors = np.stack([joint.sentence_vector(text) for text in sentences])
    np.testing.assert_allclose(vectors @ joint.image_vectors(pooled).T, expected, atol=1e-5)


def test_concepts_answer_queries_of_things_and_the_joint_space_orders_the_others():
    searcher, vectors = ImageSearcher(), np.random.default_rng(5).gamma(1, size=(7, 1280)).astype(np.float32)
    concepts = Concepts.load(pretrained_run())
    projected = searcher.project(vectors)
    for query, count, weight in (("a cat", 1, 0.001), ("a skier", 1, 1), ("two dogs in the snow on a car", 3, 1 / 3)):
        log_probs = concepts.log_probs(concepts.mentions(query), vectors)
        assert log_probs.shape == (7, count)
        cosines = projected @ searcher.joint.sentence_vector(query)
        expected = 0.5 * log_probs.sum(1) + weight * searcher.joint.sharpness * cosines
        np.testing.assert_allclose(searcher.scores(query, vectors, projected), expected, rtol=1e-4)

"""K-means filters: learning, feature maps, files, and errors."""

import json
import logging
import os

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from limner.data.collection import Collection, write_items
from limner.data.examples import Item
from limner.errors import BackboneError, CollectionError, FeatureError, MediaError, SettingsError
from limner.features.encoders.kmeans import KMeansBackbone
from limner.features.encoders.load import load_backbone, load_backbone_for
from limner.features.extract import extract
from limner.features.kmeans import (
    Filters,
    KMeansSettings,
    filter_sheet,
    learn_filters,
    load_filters,
    save_filters,
    spherical_kmeans,
)
from limner.features.store import FeatureTable

SMALL = KMeansSettings(size=16, patch=4, filters=8, grid=3, patches=600, passes=4)


def write_image(path, pixels):
    Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(path)


@pytest.fixture(scope="module")
def stripes(tmp_path_factory):
    """Images of horizontal and vertical stripes with a little noise."""
    folder = tmp_path_factory.mktemp("stripes")
    random = np.random.default_rng(4)
    items = []
    for number in range(12):
        bands = 120 + 80 * np.sign(np.sin((np.arange(24) + random.integers(8)) * np.pi / 4))[:, None, None]
        pixels = np.broadcast_to(bands, (24, 24, 3)) + random.normal(0, 3, (24, 24, 3))
        write_image(folder / f"{number}.png", pixels if number % 2 else pixels.swapaxes(0, 1))
        items.append(Item(f"{number}", "train" if number < 10 else "test", image=f"{number}.png"))
    write_items(folder, [*items, Item("text", "train"), Item("words", "words")])
    return Collection.open(folder)


@pytest.fixture(scope="module")
def learned(stripes):
    return learn_filters(stripes, SMALL)


@pytest.fixture
def file(learned, tmp_path):
    save_filters(tmp_path / "filters.safetensors", learned)
    return tmp_path / "filters.safetensors"


def planted(count):
    """Patches scattered around four directions."""
    random = np.random.default_rng(2)
    directions = np.array([[90, -90, 0, 0], [-90, 90, 0, 0], [0, 0, 90, -90], [0, 0, -90, 90]])
    patches = 128 + directions[random.integers(4, size=count)] + random.normal(0, 6, (count, 4))
    return patches.round().astype(np.uint8), directions / np.linalg.norm(directions, axis=1, keepdims=True)


@pytest.mark.parametrize(("seed", "count"), [*((seed, 300) for seed in range(4)), (0, 25_000)])  # one batch, and three
def test_kmeans_recovers_planted_directions_and_separates_opposites(seed, count):
    patches, directions = planted(count)
    settings = KMeansSettings(filters=8, passes=8)
    centroids = spherical_kmeans(
        patches, torch.zeros(4), torch.eye(4), settings, np.random.default_rng(seed), lambda: None
    )
    assert torch.allclose(centroids.norm(dim=1), torch.ones(8), atol=1e-5)
    assert (centroids.numpy() @ directions.T).max(0) == pytest.approx(np.ones(4), abs=0.02)


def test_learning_is_reproducible_and_depends_on_the_seed(stripes, learned, tmp_path):
    other = learn_filters(stripes, SMALL.model_copy(update={"seed": 2}))
    save_filters(tmp_path / "a", learned)
    save_filters(tmp_path / "b", learn_filters(stripes, SMALL))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert not torch.equal(other.centroids, learned.centroids)


def test_only_images_of_the_split_are_used(stripes, learned, tmp_path):
    for item in stripes.items("train"):
        if item.image is not None:
            os.link(stripes.image_path(item), tmp_path / item.image)
    write_items(tmp_path, [item for item in stripes.items() if item.split == "train"])
    alone = learn_filters(Collection.open(tmp_path), SMALL)
    assert torch.equal(alone.centroids, learned.centroids)


def test_saved_filters_are_restored(learned, file):
    again = load_filters(file)
    assert again.settings == learned.settings
    for name in ("mean", "whitening", "centroids"):
        assert torch.equal(getattr(again, name), getattr(learned, name))
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def hand_made(path, size, grid, centroids, **activation):
    """Filters of 2 x 2 pixels without whitening."""
    settings = KMeansSettings(size=size, patch=2, filters=len(centroids), grid=grid, **activation)
    rows = torch.tensor([[value for _ in range(3) for value in centroid] for centroid in centroids]) / 12**0.5
    save_filters(path, Filters(settings, torch.zeros(12), torch.eye(12), rows))
    return KMeansBackbone(path)


def test_the_activation_is_part_of_the_fingerprint_and_the_default_one_is_not_named(learned, tmp_path):
    """Files and features of the triangle activation are those of versions that had no other one."""
    specs = {}
    for name, activation in {
        "triangle": {},
        "quarter": {"activation": "soft-threshold"},
        "half": {"activation": "soft-threshold", "alpha": 0.5},
    }.items():
        path = tmp_path / f"{name}.safetensors"
        save_filters(path, learned._replace(settings=SMALL.model_copy(update=activation)))
        specs[name] = load_backbone(f"kmeans:{path}").specs[0]
    assert {name: spec.layer for name, spec in specs.items()} == {
        "triangle": None,
        "quarter": "soft-threshold(0.25)",
        "half": "soft-threshold(0.5)",
    }
    assert len({spec.fingerprint for spec in specs.values()}) == 3
    assert "layer soft-threshold(0.5)" in str(specs["half"])
    assert b"activation" not in (tmp_path / "triangle.safetensors").read_bytes()
    moved = load_backbone_for([specs["half"]], f"kmeans:{tmp_path / 'half.safetensors'}")
    assert moved.specs[0].fingerprint == specs["half"].fingerprint


def test_maps_do_not_depend_on_the_batch_or_the_threads(file):
    backbone = load_backbone(f"kmeans:{file}")
    images = np.random.default_rng(0).integers(0, 256, (5, 1, 16, 16, 3), dtype=np.uint8)
    together = backbone(images)["maps"]
    assert together.shape == (5, 8, 3, 3)
    assert (together >= 0).all()
    for image, maps in zip(images, together, strict=True):
        np.testing.assert_allclose(backbone(image[None])["maps"][0], maps, rtol=2**-9, atol=1e-4)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        np.testing.assert_allclose(backbone(images)["maps"], together, rtol=2**-9, atol=1e-4)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)


def test_extraction_and_new_images_agree(stripes, file, tmp_path):
    for item in stripes.items():
        if item.image is not None:
            os.link(stripes.image_path(item), tmp_path / item.image)
    write_items(tmp_path, stripes.items())
    collection = Collection.open(tmp_path)
    done = extract(collection, load_backbone(f"kmeans:{file}"), batch_size=5)
    spec = done.tables[0].spec
    assert (done.added, spec.name, spec.kind, spec.shape) == (12, "kmeans", "maps", (8, 3, 3))
    assert spec.source == f"kmeans:{file.resolve()}"
    backbone = load_backbone_for([spec], spec.source)
    new = backbone(backbone.read(tmp_path / "3.png")[None])["maps"]
    np.testing.assert_allclose(new[0], FeatureTable.open(collection, "kmeans").take(["3"])[0], rtol=2**-9, atol=1e-4)
    other = learn_filters(stripes, SMALL.model_copy(update={"seed": 2}))
    save_filters(tmp_path / "other.safetensors", other)
    with pytest.raises(FeatureError, match="weights_sha256"):
        extract(collection, load_backbone(f"kmeans:{tmp_path / 'other.safetensors'}"))
    with pytest.raises(FeatureError, match="--backbone kmeans:FILE"):
        load_backbone_for([spec], f"kmeans:{tmp_path / 'other.safetensors'}")
    moved = file.rename(tmp_path / "moved.safetensors")
    with pytest.raises(BackboneError, match="--backbone kmeans:FILE"):
        load_backbone_for([spec])
    with pytest.raises(BackboneError, match="pixels:16: expected k-means filters"):
        load_backbone_for([spec], "pixels:16")
    assert load_backbone_for([spec], f"kmeans:{moved}").specs[0].fingerprint == spec.fingerprint


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"size": 5, "patch": 6}, "expected a patch no larger than the image, got patch 6 and size 5"),
        ({"size": 12, "patch": 6}, "expected a grid no larger than the maps, got grid 9 for maps of side 7"),
        ({"filters": 3}, "expected at least 4 filters, got 3: models take maps of three channels for pixels"),
        ({"fitlers": 12}, "fitlers"),
        ({"alpha": 0.5}, "alpha 0.5 has no effect on the triangle activation"),
        ({"activation": "soft"}, "should be 'triangle' or 'soft-threshold'"),
    ],
)
def test_invalid_settings_are_refused(values, message):
    with pytest.raises(SettingsError, match=message):
        KMeansSettings.parse(values)


def test_images_smaller_than_the_patch_are_skipped(tmp_path, caplog):
    noise = np.random.default_rng(0).integers(0, 256, (20, 20, 3))
    write_image(tmp_path / "large.png", noise)
    write_image(tmp_path / "strip.png", noise[:, :3])
    (tmp_path / "broken.png").write_bytes(b"no image")
    write_items(tmp_path, [Item(name, "train", image=f"{name}.png") for name in ("broken", "large", "strip")])
    collection = Collection.open(tmp_path)
    with caplog.at_level(logging.WARNING):
        save_filters(tmp_path / "filters", learn_filters(collection, SMALL))
    assert "2 images were skipped" in caplog.text
    backbone = KMeansBackbone(tmp_path / "filters")
    with pytest.raises(MediaError, match=r"strip\.png: 3 x 20 pixels, smaller than .* 4 x 4"):
        backbone.read(tmp_path / "strip.png")
    assert set(extract(collection, backbone).skipped) == {"broken", "strip"}


def test_too_few_patches_are_refused(stripes, tmp_path):
    with pytest.raises(CollectionError, match="split 'words' has no images"):
        learn_filters(stripes, SMALL, split="words")
    with pytest.raises(CollectionError, match="no items in split 'dev'"):
        learn_filters(stripes, SMALL, split="dev")
    write_image(tmp_path / "grey.png", np.full((20, 20, 3), 90))
    write_items(tmp_path, [Item("grey", "train", image="grey.png")])
    with pytest.raises(CollectionError, match=r"expected at least 8 patches .*, got 0"):
        learn_filters(Collection.open(tmp_path), SMALL)


def test_other_files_are_refused(learned, file):
    other = file.with_name("weights.safetensors")
    save_file({"weight": torch.zeros(3)}, other)
    damaged = file.with_name("damaged.safetensors")
    damaged.write_bytes(file.read_bytes()[:-40])
    save_filters(wrong := file.with_name("wrong.safetensors"), learned._replace(centroids=torch.zeros(2, 3)))
    expected = {
        other: "not k-means filters",
        damaged: "damaged",
        wrong: "expected tensors of shapes",
        file.parent: "no such file",
    }
    for path, message in expected.items():
        with pytest.raises(BackboneError, match=f"{message}.*limner kmeans"):
            load_backbone(f"kmeans:{path}")
    with pytest.raises(BackboneError, match="option 'size' does not apply"):
        load_backbone(f"kmeans:{file}", size=32)


def test_the_sheet_shows_unwhitened_filters(tmp_path):
    backbone = hand_made(tmp_path / "filters", 4, 2, [[-1.0, 1.0, -1.0, 1.0], [1.0, 1.0, -1.0, -1.0]] * 2)
    assert backbone.specs[0].shape == (4, 2, 2)
    sheet = np.asarray(filter_sheet(load_filters(tmp_path / "filters"), zoom=5, columns=2))
    first, second = sheet[4:14, 4:14], sheet[4:14, 18:28]
    assert (first[:, :5] == 0).all()
    assert (first[:, 5:] == 255).all()
    assert (second[:5] == 255).all()
    assert (second[5:] == 0).all()


def test_the_command_prints_the_file_and_the_next_command(stripes, tmp_path, command_line):
    out, sheet = tmp_path / "filters.safetensors", tmp_path / "filters.png"
    sizes = ["--size", "16", "--patch", "4", "--filters", "8", "--grid", "3", "--patches", "600"]
    status, printed, _ = command_line("kmeans", stripes.path, "--out", out, *sizes, "--sheet", sheet, "--json")
    assert status == 0
    output = json.loads(printed)
    assert output["filters"] == str(out)
    assert output["next"] == f"limner features {stripes.path} --backbone kmeans:{out}"
    assert load_filters(out).settings == SMALL.model_copy(update={"passes": KMeansSettings().passes})
    assert sheet.is_file()

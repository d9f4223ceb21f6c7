"""Commands that compute features: features, kmeans."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from limner import bounds
from limner.apps.cli.app import DATA
from limner.apps.cli.options import claim_image, command, refuse, without_none
from limner.apps.cli.terminal import echo, err, print_json, print_next, progress_bar, progress_bars
from limner.errors import SettingsError
from limner.storage.outputs import claim_file, require_saved, save_output

if TYPE_CHECKING:
    from limner.data.collection import Collection
    from limner.features.extract import BackboneChoice, Extraction
    from limner.features.spec import FeatureSpec
    from limner.media.modality import Modality

SMALL_COLLECTION = 1000
"""Number of training items below which the recipe for small collections is suggested."""


@command(DATA)
def features(
    collection: Path,
    *,
    backbone: str,
    layer: str | None = None,
    kind: str = "pooled",
    size: bounds.ImageSide | None = None,
    resize: str | None = None,
    views: Annotated[int, bounds.Bounds(1, 10)] = 1,
    boxes: str | None = None,
    regions: bounds.Regions | None = None,
    frames: bounds.Frames | None = None,
    every: bounds.Count | None = None,
    name: str | None = None,
    split: list[str] | None = None,
    batch_size: bounds.BatchSize = 32,
    precision: str = "auto",
    device: str = "cpu",
    strict: bool = False,
    ray: str | None = None,
    as_json: bool = False,
) -> None:
    """Compute and store the features of every image or video; an interrupted command continues where it stopped.

    Example: `limner features collections/flickr8k --backbone efficientnet-lite2 --name lite2`

    Options:
        collection: Collection whose images, videos or audio files are encoded.
        backbone: efficientnet-lite2 (built in), hub id, folder in transformers format, vgg16:FILE, vgg19:FILE,
            alexnet:FILE, kmeans:FILE, pixels:64 (the pixels themselves, 64 x 64), or logmel for audio files.
        layer: Layer whose output is stored (res4f, conv5_4, layer.12 …); default: the last.
        kind: Kind of features: pooled (one vector), grid (one per location; of a video, one per frame) or both.
        size: Side of the backbone's input in pixels; default: as pre-trained.
        resize: Resizing to a square: crop or squash; default: as pre-trained.
        views: Views averaged per image: 1, 2 (with the mirror image) or 10 (with crops).
        boxes: JSON file of boxes: encode regions and the whole image. 'collection': the regions of the items.
        regions: With --boxes: maximum number of regions per image; default: 4.
        frames: Frames of a video that are encoded, evenly spaced in time; default: 16.
        every (K): Encode every K-th frame of a video, at most --frames of them.
        name: Name of the feature table; default: from the backbone.
        split: Split to encode; default: all. Repeatable.
        precision: Arithmetic: fp32, bf16, or auto for bf16 where the hardware is fast.
        strict: Fail at a file that cannot be read, not skip it.
    """
    from limner.data.collection import Collection
    from limner.features.extract import BackboneChoice
    from limner.media.modality import MODALITIES

    opened = Collection.open(collection)
    options = {"layer": layer, "size": size, "resize": resize, "views": views, "precision": precision, "device": device}
    choice = BackboneChoice(backbone, kind, options, without_none(count=frames, every=every), boxes, regions)
    done = _extract(opened, choice, {"name": name, "splits": split, "batch_size": batch_size, "strict": strict}, ray)
    specs = [table.spec for table in done.tables]
    if as_json:
        tables = [spec.model_dump(mode="json") for spec in specs]
        return print_json({"tables": tables, "added": done.added, "present": done.present, "skipped": done.skipped})
    for spec in specs:
        echo(f"{spec.name}: {spec}")
    media = MODALITIES[specs[0].modality].plural
    echo(f"{done.added:,} {media} encoded, {done.present:,} already stored, {len(done.skipped):,} skipped")
    for item, reason in list(done.skipped.items())[:5]:
        echo(f"  {item}: {reason}")
    print_next(after_features(opened, specs))


def _extract(collection: Collection, choice: BackboneChoice, options: dict[str, Any], ray: str | None) -> Extraction:
    from limner.features.extract import extract

    with progress_bars() as bars:
        verified = partial(bars, "verifying stored features")
        if ray is not None:
            from limner.apps.distributed.features import ExtractionOptions, extract_distributed

            encoding, on_cluster = partial(bars, "encoding"), ExtractionOptions(**options)
            return extract_distributed(collection, choice, ray, on_cluster, on_progress=encoding, on_verified=verified)
        backbone = choice.load(collection, options["splits"], strict=options["strict"])
        encoding = partial(bars, f"encoding {backbone.modality.plural}")
        return extract(collection, backbone, **options, on_progress=encoding, on_verified=verified)


def after_features(collection: Collection, tables: Sequence[FeatureSpec]) -> str:
    """Return the command to run after `limner features`: a training of a captioner that reads the first table.

    Features of videos and audio files, and collections without a training split, have the list of recipes instead.
    """
    from limner.media.modality import IMAGE
    from limner.runs.recipe import load_recipe

    (table, *_), training = tables, collection.splits().get("train", 0)
    if table.modality != IMAGE.name or table.frames is not None or not training:
        return "limner recipes"
    recipe = "scenes/mrnn" if table.backbone.startswith("pixels") else "mao2015/flickr8k"
    if training < SMALL_COLLECTION:
        recipe = "own/photos"
    reads = load_recipe(recipe, []).features.tables == (table.name,)
    changes = [] if reads else [f"features.tables=[{table.name}]"]
    return train_command(recipe, collection.path, *changes)


def features_command(collection: Path, backbone: str, modality: Modality | None = None) -> str:
    """Return the command that computes features with a backbone; for videos, the table of the video recipes."""
    frames = ["--frames", "16"] if modality is not None and modality.name == "video" else []
    return shlex.join(["limner", "features", str(collection), "--backbone", backbone, *frames])


def train_command(recipe: str, collection: Path, *changes: str) -> str:
    """Return the command that trains a recipe on a collection."""
    run = Path("runs") / recipe.rpartition("/")[2]
    return shlex.join(["limner", "train", recipe, *changes, "--collection", str(collection), "--out", str(run)])


@command(DATA)
def kmeans(
    collection: Path,
    *,
    out: Path,
    size: bounds.PatchSide | None = None,
    patch: bounds.PatchSide | None = None,
    filters: bounds.Width | None = None,
    grid: bounds.GridSide | None = None,
    patches: bounds.Several | None = None,
    split: str = "train",
    seed: bounds.Seed | None = None,
    activation: Literal["triangle", "soft-threshold"] | None = None,
    alpha: bounds.Threshold | None = None,
    sheet: Path | None = None,
    force: bool = False,
    as_json: bool = False,
) -> None:
    """Learn k-means filters from image patches, for feature maps that need no pre-trained backbone.

    Example: `limner kmeans collections/flickr8k --out filters.safetensors`

    Options:
        collection: Collection whose images the filters are learned from.
        out (FILE): New .safetensors file for the filters.
        size: Side to which images are resized, in pixels; default: 64.
        patch: Side of a patch in pixels; default: 6.
        filters: Number of filters, and of feature maps, at least 4; default: 128.
        grid: Side of a pooled feature map in locations; default: 9.
        patches: Number of patches sampled for training; default: 200000.
        split: Split to learn from.
        seed: Random seed; default: 1.
        activation: Activation of the filters, with which images are encoded; default: triangle.
        alpha: With --activation soft-threshold: threshold of the product of a whitened patch and a filter; default:
            0.25.
        sheet (FILE): Write an image of the filters as a PNG file.
    """
    if activation != "soft-threshold":
        refuse({"--alpha": alpha}, "has an effect only with --activation soft-threshold; leave it out")
    if out.is_file() and not force:
        raise SettingsError(
            f"--out {out}: already exists, and models trained on the features of its filters need it to encode new "
            "images; name another file, or add --force to replace it"
        )
    claim_file(out, "--out", force=force)
    if out.suffix != ".safetensors":
        raise SettingsError(f"--out {out}: expected a .safetensors file; name it {out.with_suffix('.safetensors')}")
    if sheet is not None:
        claim_image(sheet, "--sheet", force)
    from limner.apps.report.images import save_sheet
    from limner.data.collection import Collection
    from limner.features.kmeans import KMeansSettings, filter_sheet, learn_filters, save_filters

    values = without_none(size=size, patch=patch, filters=filters, grid=grid, patches=patches, seed=seed)
    values |= without_none(activation=activation, alpha=alpha)
    settings = KMeansSettings.parse(values, "kmeans")
    with progress_bar("learning filters") as bar:
        learned = learn_filters(Collection.open(collection), settings, split=split, on_progress=bar)
    saved = [save_output(out, lambda file: save_filters(file, learned))]
    if sheet is not None:
        saved.append(save_output(sheet, lambda file: save_sheet(filter_sheet(learned), file)))
        err.print(f"sheet of the filters: {saved[-1].path}")
    path = saved[0].path
    next_command = features_command(collection, f"kmeans:{path}")
    if as_json:
        print_json({"filters": str(path), "settings": settings.model_dump(mode="json"), "next": next_command})
    else:
        echo(f"{settings.filters} filters of {settings.patch} x {settings.patch} pixels: {path}")
        print_next(next_command)
    require_saved(saved)

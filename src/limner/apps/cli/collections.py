"""Commands that create and inspect collections: import, generate, show."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from limner.apps.cli.app import DATA
from limner.apps.cli.features import features_command, train_command
from limner.apps.cli.options import claim_image, command, refuse, without_none
from limner.apps.cli.terminal import activity, echo, err, print_json, print_next, print_table, progress_bar
from limner.bounds import Bounds, CountOrNone, Mebibytes, Probability, Seed
from limner.errors import SettingsError, counted, did_you_mean
from limner.storage.outputs import require_saved, save_output

if TYPE_CHECKING:
    from limner.data.collection import Collection
    from limner.data.summary import CollectionSummary

KINDS = {
    "scenes": "SceneSettings",
    "clips": "ClipSettings",
    "sounds": "SoundSettings",
    "sound-sequences": "SoundSequenceSettings",
    "reviews": "ReviewSettings",
}
"""Kinds of generated collections: the public names of their settings."""


@command(DATA, "import")
def import_(
    kind: str,
    source: Path,
    collection: Path,
    *,
    images: Path | None = None,
    splits: Path | None = None,
    lang: str | None = None,
    split: str | None = None,
    descriptions: Literal["split", "whole"] | None = None,
    strict: bool = False,
    copy: bool = False,
    memory: Mebibytes = 256,
    as_json: bool = False,
) -> None:
    """Create a collection of images (or audio files) and sentences, or extend one.

    Example: `limner import flickr ~/flickr8k collections/flickr8k`

    Options:
        kind: Source format: flickr, multi30k, coco, karpathy, iapr, visual-genome, flickr30k-entities, jsonl, csv,
            webdataset, parquet, datasets, folder, audio, imdb or rt-polarity.
        source: Folder or file to read.
        collection: Collection to create or to extend.
        images (DIR): Image folder; default: the image folder of the corpus.
        splits (DIR): Folder with train.txt, val.txt and test.txt.
        lang: Language code of the sentences, where the format has none.
        split: Split of items without one; auto assigns 80/10/10 % at random.
        descriptions: iapr: split descriptions into sentences at ';' (default), or keep each whole, with ';' as a token.
        strict: Fail instead of skipping damaged entries.
        copy: Copy the images into the collection instead of referring to them.
        memory (MIB): Memory in MiB of the items that are held while JSONL, CSV, Parquet, WebDataset or datasets are
            read.
    """
    from limner.data.collection import Collection
    from limner.data.readers import ReaderOptions, import_collection

    options = ReaderOptions(images=images, splits=splits, lang=lang, split=split, descriptions=descriptions)
    with progress_bar("copying images" if copy else "importing") as bar:
        report = import_collection(
            kind, source, collection, options, strict=strict, copy=copy, budget=memory << 20, on_progress=bar
        )
    next_command = after_import(Collection.open(report.collection))
    if as_json:
        names = ("items", "sentences", "regions", "phrases")
        numbers = {name: getattr(report, name) for name in names} | report.changes._asdict() | report.tally.as_dict()
        return print_json({"collection": str(report.collection), **numbers, "next": next_command})
    for line in report.lines():
        echo(line)
    print_next(next_command)


@command(DATA)
def generate(
    kind: str,
    collection: Path,
    *,
    seed: Seed | None = None,
    train: CountOrNone | None = None,
    val: CountOrNone | None = None,
    test: CountOrNone | None = None,
    ambiguous: Probability | None = None,
    occluded: Probability | None = None,
    as_json: bool = False,
) -> None:
    """Generate a collection with sentences; the same seed gives the same bytes.

    Example: `limner generate sounds collections/sounds --train 2000`

    Options:
        kind: scenes (drawn images), clips (videos), sounds or sound-sequences (audio files), or reviews (texts).
        collection: Collection to create.
        seed: Random seed; default: 0.
        train: Number of training items; default: 2400 scenes, 1600 clips, 1000 sounds, 4000 reviews.
        val: Number of validation items; default: 200 scenes or clips, 100 sounds.
        test: Number of test items; default: 200 scenes or clips, 100 sounds.
        ambiguous: Share of scenes with a word that only the image disambiguates, 0-1; default: 0.4.
        occluded: Share of moving objects of clips that an obstacle hides, 0-1; default: 0.
    """
    if kind not in KINDS:
        *names, last = KINDS
        raise SettingsError(f"KIND '{kind}': expected {', '.join(names)} or {last}{did_you_mean(kind, KINDS)}")
    for option, value, owner in (("--ambiguous", ambiguous, "scenes"), ("--occluded", occluded, "clips")):
        if value is not None and kind != owner:
            raise SettingsError(f"{option} is an option of {owner}, not of {kind}")
    import limner

    values = without_none(seed=seed, train=train, val=val, test=test, ambiguous=ambiguous, occluded=occluded)
    settings = getattr(limner, KINDS[kind]).parse(values, kind)
    with progress_bar(f"generating {kind}") as bar:
        generated = limner.generate_collection(collection, settings, bar)
    next_command = after_generate(kind, generated)
    if as_json:
        return print_json({"collection": str(collection), "splits": generated.splits(), "next": next_command})
    echo(f"{collection}: {', '.join(f'{split} {count:,}' for split, count in generated.splits().items())}")
    print_next(next_command)


def after_generate(kind: str, generated: Collection) -> str:
    """Return the command to run after `limner generate`: features of the files, or a training on texts."""
    if kind == "reviews":
        return train_command("lecture/reviews", generated.path)
    from limner.media.modality import IMAGE

    modality = generated.items()[0].modality or IMAGE
    backbone = modality.default_backbone
    if kind == "sound-sequences":
        backbone = f"{backbone}:{max(len(item.frame_labels) for item in generated.items())}"
    return features_command(generated.path, backbone, modality)


def after_import(collection: Collection) -> str:
    """Return the command to run after `limner import`: features of the files, or the list of recipes for texts."""
    from limner.data.collection import MEDIA_COLUMNS
    from limner.media.modality import IMAGE

    modality = next((item.modality for item in collection.iter_items(columns=MEDIA_COLUMNS) if item.modality), None)
    if modality is None:
        return "limner recipes"
    backbone = "efficientnet-lite2" if modality is IMAGE else modality.default_backbone
    return features_command(collection.path, backbone, modality)


@command(DATA)
def show(
    collection: Path,
    *,
    split: str | None = None,
    sheet: Path | None = None,
    boxes: bool = False,
    force: bool = False,
    as_json: bool = False,
) -> None:
    """Show the contents of a collection: counts, missing images, feature tables, a contact sheet.

    Example: `limner show collections/flickr8k --sheet sheet.png`

    Options:
        collection: Collection to inspect.
        split: Split of the contact sheet; default: all.
        sheet (FILE): Write a contact sheet of some images as a PNG file.
        boxes: Draw the boxes of the regions on the contact sheet.
    """
    if sheet is None:
        refuse({"--boxes": boxes, "--split": split}, "has an effect only on the contact sheet; add --sheet FILE")
    else:
        claim_image(sheet, "--sheet", force)
    from limner.apps.report.images import contact_sheet, save_sheet
    from limner.data.collection import Collection
    from limner.data.summary import summarise

    opened = Collection.open(collection)
    with activity("reading the collection"):
        contents = summarise(opened)
        drawn = None if sheet is None else contact_sheet(opened, split, boxes=boxes)
    saved = []
    if sheet is not None and drawn is not None:
        saved.append(save_output(sheet, lambda file: save_sheet(drawn, file)))
        err.print(f"contact sheet: {saved[0].path}")
    print_json({**asdict(contents), "collection": str(collection)}) if as_json else _print_summary(contents)
    require_saved(saved)


def _print_summary(summary: CollectionSummary) -> None:
    langs = sorted({lang for counts in summary.sentences.values() for lang in counts})
    rows = [["split", "items", "images", *(f"sentences {lang}" for lang in langs)]]
    for split, count in summary.splits.items():
        sentences = (f"{summary.sentences[split].get(lang, 0):,}" for lang in langs)
        rows.append([split, f"{count:,}", f"{summary.media['image'].get(split, 0):,}", *sentences])
    print_table(rows)
    videos, sounds = (sum(summary.media[name].values()) for name in ("video", "audio"))
    media = f"{counted(videos, 'video')}, {counted(sounds, 'audio file')}"
    annotations = f"{counted(summary.regions, 'region')}, {counted(summary.phrases, 'phrase')}"
    echo(f"{counted(summary.items, 'item')}, {media}, {annotations}")
    echo(f"features: {', '.join(summary.features) or 'none'}")
    if summary.missing:
        files = counted(summary.missing, "media file is", "media files are")
        echo(f"{files} missing, for example {'; '.join(summary.missing_examples)}")


@command(DATA)
def compact(
    collection: Path, *, older_than: Annotated[float, Bounds(0, 36_500, whole=False)] = 7.0, as_json: bool = False
) -> None:
    """Rewrite the many small files of a collection as few large files, index its ids, and remove old versions.

    Example: `limner compact collections/flickr8k`

    Options:
        collection: Collection to compact; a folder or a URI such as s3://bucket/c.
        older_than (DAYS): Age in days of the old versions of tables that are removed; 0 removes all, also versions
            that a running process reads.
    """
    from datetime import timedelta

    from limner.features.maintenance import compact as compact_tables

    with activity("compacting"):
        tables = list(compact_tables(collection, timedelta(days=older_than)))
    if as_json:
        return print_json({"collection": str(collection), "tables": [table._asdict() for table in tables]})
    for table in tables:
        echo(
            f"{table.name}: {table.fragments_before:,} -> {table.fragments_after:,} fragments, "
            f"{table.bytes_before:,} -> {table.bytes_after:,} bytes, {counted(table.versions_removed, 'old version')} "
            "removed"
        )

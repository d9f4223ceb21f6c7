"""Commands that make collections and look at them: import, show, features, kmeans."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from limner.cli.app import AsJson, Device, app, given
from limner.cli.terminal import (
    err,
    print_json,
    print_summary,
    progress_bar,
)
from limner.errors import SettingsError


@app.command("import")
def import_(
    kind: Annotated[str, typer.Argument(help="flickr, multi30k, coco, karpathy, iapr, jsonl, csv, folder or audio.")],
    source: Annotated[Path, typer.Argument(help="The folder or file to read.")],
    collection: Annotated[Path, typer.Argument(help="The collection to make, or to add to.")],
    images: Annotated[
        Path | None, typer.Option(help="Folder of the pictures, if not where the corpus puts it.")
    ] = None,
    splits: Annotated[Path | None, typer.Option(help="Folder of lists train.txt, val.txt, test.txt.")] = None,
    lang: Annotated[str | None, typer.Option(help="Language of the sentences.")] = None,
    split: Annotated[str | None, typer.Option(help="Split of items without one; auto deals them out 80/10/10.")] = None,
    strict: Annotated[bool, typer.Option(help="Refuse where something would be skipped.")] = False,
    copy: Annotated[bool, typer.Option(help="Copy the pictures into the collection.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a collection of pictures and sentences, or add to one.

    Example: `limner import flickr ~/flickr8k collections/flickr8k`
    """
    from limner.data.readers import Options, import_collection

    options = Options(images=images, splits=splits, lang=lang, split=split)
    with progress_bar("copying pictures") as bar:
        report = import_collection(kind, source, collection, options, strict=strict, copy=copy, progress=bar)
    if as_json:
        print_json(
            {
                "collection": str(report.collection),
                "items": report.items,
                "sentences": report.sentences,
                **report.changes._asdict(),
                "skipped": dict(report.skipped),
                "examples": report.examples,
            }
        )
    else:
        for line in report.lines():
            typer.echo(line)


@app.command()
def show(
    collection: Annotated[Path, typer.Argument(help="The collection.")],
    split: Annotated[str | None, typer.Option(help="Split of the contact sheet.")] = None,
    sheet: Annotated[Path | None, typer.Option(help="Write a contact sheet, a PNG of some pictures, here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a collection holds: counts, missing pictures, feature tables, a contact sheet.

    Example: `limner show collections/flickr8k --sheet sheet.png`
    """
    from limner.data.collection import Collection
    from limner.report.contact_sheet import contact_sheet, save_sheet, summary

    opened = Collection.open(collection)
    if sheet is not None:
        save_sheet(contact_sheet(opened, split), sheet)
        err.print(f"contact sheet: {sheet}")
    found = summary(opened)
    if as_json:
        print_json({**asdict(found), "collection": str(collection)})
    else:
        print_summary(found)


@app.command()
def features(
    collection: Annotated[Path, typer.Argument(help="The collection.")],
    backbone: Annotated[
        str,
        typer.Option(
            help="Hub id, folder in transformers format, vgg19:FILE, alexnet:FILE, kmeans:FILE, logmel for sounds, "
            "or pixels:64 for none."
        ),
    ],
    layer: Annotated[str | None, typer.Option(help="Whose output to take (res4f, conv5_4, layer.12 …).")] = None,
    kind: Annotated[str, typer.Option(help="vector (pooled), grid (one a location) or both.")] = "pooled",
    size: Annotated[int | None, typer.Option(help="Side of the network's input in pixels.")] = None,
    resize: Annotated[str | None, typer.Option(help="crop or squash; default: as the network was trained.")] = None,
    views: Annotated[int, typer.Option(help="Views averaged: 1, 2 (and mirrored) or 10.")] = 1,
    boxes: Annotated[
        str | None,
        typer.Option(help="File of boxes: look at regions and the whole. 'collection': the items' own regions."),
    ] = None,
    regions: Annotated[int | None, typer.Option(help="Regions of a picture at most, with --boxes; default 4.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the table.")] = None,
    split: Annotated[list[str] | None, typer.Option(help="Only these splits. Repeatable.")] = None,
    batch_size: Annotated[int, typer.Option(help="Pictures looked at together.", min=1)] = 32,
    precision: Annotated[str, typer.Option(help="auto, bf16 or fp32.")] = "auto",
    device: Device = "cpu",
    strict: Annotated[bool, typer.Option(help="Stop at a picture that cannot be read.")] = False,
    as_json: AsJson = False,
) -> None:
    """Look at every picture once and store what was seen; a run that was stopped goes on where it was.

    Example: `limner features collections/flickr8k --backbone google/mobilenet_v2_1.0_224`
    """
    from limner.data.collection import Collection
    from limner.features.encoders.load import load_backbone
    from limner.features.store import extract

    opened = Collection.open(collection)
    if boxes is None and regions is not None:
        raise SettingsError(f"--regions {regions}: says how many boxes to take; name the file of boxes with --boxes")
    eye = load_backbone(
        backbone,
        layer=layer,
        kind=kind,  # type: ignore[arg-type]  # checked there, with a message
        size=size,
        resize=resize,  # type: ignore[arg-type]
        views=views,
        precision=precision,
        device=device,
    )
    if boxes is not None:
        from limner.features.regions import with_regions

        eye = with_regions(eye, opened, boxes, strict=strict, **given(count=regions))
    media = eye.modality.plural
    with progress_bar(f"reading {media}") as bar:
        done = extract(
            opened,
            eye,
            name=name,
            splits=split,
            batch_size=batch_size,
            strict=strict,
            progress=bar,
        )
    if as_json:
        tables = [table.spec.model_dump(mode="json") for table in done.tables]
        print_json({"tables": tables, "added": done.added, "present": done.present, "skipped": done.skipped})
        return
    for table in done.tables:
        typer.echo(f"{table.spec.name}: {table.spec}")
    typer.echo(f"{done.added:,} {media} encoded, {done.present:,} stored before, {len(done.skipped):,} skipped")
    for item, reason in list(done.skipped.items())[:5]:
        typer.echo(f"  {item}: {reason}")


@app.command()
def kmeans(
    collection: Annotated[Path, typer.Argument(help="The collection.")],
    out: Annotated[Path, typer.Option(help="File for the filters (.safetensors).")],
    size: Annotated[
        int | None, typer.Option(help="Side to which pictures are squashed, in pixels; default 64.")
    ] = None,
    patch: Annotated[int | None, typer.Option(help="Side of a patch in pixels; default 6.")] = None,
    filters: Annotated[int | None, typer.Option(help="Filters, and so maps; default 128.")] = None,
    grid: Annotated[int | None, typer.Option(help="Each map is pooled to this many places a side; default 9.")] = None,
    patches: Annotated[int | None, typer.Option(help="Patches learned from; default 200000.")] = None,
    split: Annotated[str, typer.Option(help="Whose pictures are learned from.")] = "train",
    seed: Annotated[int | None, typer.Option(help="Of the draws; default 1.")] = None,
    sheet: Annotated[Path | None, typer.Option(help="Write a PNG of the filters here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Learn filters from patches of the pictures, for feature maps that need no pre-trained network.

    Example: `limner kmeans collections/flickr8k --out filters.safetensors`
    """
    from limner.data.collection import Collection
    from limner.features.encoders.kmeans import KMeansSettings, filter_sheet, learn_filters, save_filters
    from limner.report.contact_sheet import save_sheet

    wishes = given(size=size, patch=patch, filters=filters, grid=grid, patches=patches, seed=seed)
    settings = KMeansSettings.parse(wishes, "kmeans")
    _require_new_filters(out)
    with progress_bar("learning filters") as bar:
        learned = learn_filters(Collection.open(collection), settings, split=split, progress=bar)
    save_filters(out, learned)
    if sheet is not None:
        save_sheet(filter_sheet(learned), sheet)
        err.print(f"sheet of the filters: {sheet}")
    then = f"limner features {collection} --backbone kmeans:{out}"
    if as_json:
        print_json({"filters": str(out), "settings": settings.model_dump(mode="json"), "next": then})
        return
    typer.echo(f"{settings.filters} filters of {settings.patch} x {settings.patch} pixels: {out}")
    typer.echo(f"next: {then}")


def _require_new_filters(out: Path) -> None:
    """Refuse, before the work begins, what is no place for filters."""
    if out.is_dir():
        raise SettingsError(f"{out}: is a folder; name a file in it, {out / 'filters.safetensors'} for example")
    if out.suffix != ".safetensors":
        raise SettingsError(f"{out}: filters are a .safetensors file; name it {out.with_suffix('.safetensors')}")
    if out.exists():
        raise SettingsError(
            f"{out}: is there already, and models that learned from what its filters see need them to look at new "
            "pictures; name another --out, or remove it"
        )


@app.command()
def generate(
    kind: Annotated[str, typer.Argument(help="scenes (drawn pictures) or sounds.")],
    collection: Annotated[Path, typer.Argument(help="The collection to make.")],
    seed: Annotated[int | None, typer.Option(help="Decides everything that is drawn; default 0.")] = None,
    train: Annotated[int | None, typer.Option(help="Items to learn from; default 2400 scenes, 1000 sounds.")] = None,
    val: Annotated[int | None, typer.Option(help="Items to validate on; default 200 scenes, 100 sounds.")] = None,
    test: Annotated[int | None, typer.Option(help="Items to test on; default 200 scenes, 100 sounds.")] = None,
    ambiguous: Annotated[
        float | None, typer.Option(help="Share of scenes with a word of two meanings; default 0.4.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Generate a collection to learn from, with its sentences; the same seed gives the same bytes.

    Example: `limner generate sounds collections/sounds --train 2000`
    """
    from limner.media.modality import IMAGE
    from limner.synthetic.scenes import SceneSettings
    from limner.synthetic.scenes import generate as generate_scenes
    from limner.synthetic.sounds import SoundSettings, generate_sounds

    wishes = given(seed=seed, train=train, val=val, test=test, ambiguous=ambiguous)
    with progress_bar(f"generating {kind}") as bar:
        if kind == "scenes":
            made = generate_scenes(collection, SceneSettings.parse(wishes, kind), bar)
        elif kind == "sounds":
            made = generate_sounds(collection, SoundSettings.parse(wishes, kind), bar)
        else:
            raise SettingsError(f"'{kind}': nothing of this kind is generated; say scenes or sounds")
    then = f"limner features {collection} --backbone {(made.items()[0].modality or IMAGE).default_backbone}"
    if as_json:
        print_json({"collection": str(collection), "splits": made.splits(), "next": then})
        return
    typer.echo(f"{collection}: {', '.join(f'{split} {count:,}' for split, count in made.splits().items())}")
    typer.echo(f"next: {then}")

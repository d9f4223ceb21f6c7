"""Commands that make collections and look at them: import, show, features."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from limner.cli.app import AsJson, Device, app
from limner.terminal import (
    err,
    print_json,
    print_summary,
    progress_bar,
)


@app.command("import")
def import_(
    kind: Annotated[str, typer.Argument(help="flickr, multi30k, coco, karpathy, iapr, jsonl, csv or folder.")],
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
    from limner.data.contact import contact_sheet, save_sheet, summary

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
        typer.Option(help="Hub id, folder in transformers format, vgg19:FILE, alexnet:FILE, or pixels:64 for none."),
    ],
    layer: Annotated[str | None, typer.Option(help="Whose output to take (res4f, conv5_4, layer.12 …).")] = None,
    kind: Annotated[str, typer.Option(help="vector (pooled), grid (one a location) or both.")] = "vector",
    size: Annotated[int | None, typer.Option(help="Side of the network's input in pixels.")] = None,
    resize: Annotated[str | None, typer.Option(help="crop or squash; default: as the network was trained.")] = None,
    views: Annotated[int, typer.Option(help="Views averaged: 1, 2 (and mirrored) or 10.")] = 1,
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
    from limner.vision.backbones import load_backbone
    from limner.vision.features import extract

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
    with progress_bar("looking at pictures") as bar:
        done = extract(
            Collection.open(collection),
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
    typer.echo(f"{done.added:,} pictures looked at, {done.present:,} known before, {len(done.skipped):,} skipped")
    for item, reason in list(done.skipped.items())[:5]:
        typer.echo(f"  {item}: {reason}")

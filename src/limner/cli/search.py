"""The command for image-text retrieval in a collection: search."""

from __future__ import annotations

from typing import Annotated

import typer

from limner.cli.app import USE, app
from limner.cli.options import (
    BackboneOption,
    CollectionOption,
    DeviceOption,
    JsonOption,
    ModelOption,
    SearchedSplitOption,
    require_one_model,
)
from limner.cli.terminal import activity, print_json


@app.command(rich_help_panel=USE)
def search(
    query: Annotated[
        str, typer.Argument(help="A sentence to retrieve images, or an image or audio file to retrieve sentences.")
    ],
    model: ModelOption = None,
    *,
    collection: CollectionOption,
    split: SearchedSplitOption = None,
    count: Annotated[int, typer.Option("--count", help="Number of results.", min=1)] = 5,
    backbone: BackboneOption = None,
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Retrieve images of a collection by a sentence, or sentences by an image.

    Example: `limner search "a dog in the snow" --model runs/mrnn --collection collections/flickr8k`
    """
    run = require_one_model(model, "search")
    from limner.data.collection import Collection
    from limner.inference.retriever import Retriever
    from limner.media.modality import find_modality

    by_file = find_modality(query) is not None
    retriever = Retriever.load(run, backbone=backbone, device=device, encode_images=by_file)
    opened = Collection.open(collection)
    retrieve = retriever.retrieve_sentences if by_file else retriever.retrieve_images
    with activity("searching"):
        results = retrieve(query, opened, split=split, count=count)
    if as_json:
        print_json([result._asdict() for result in results])
        return
    for result in results:
        typer.echo(f"{result.score:.2f}\t{result.image or ''}\t{result.text}")

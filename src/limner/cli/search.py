"""The command for image-text retrieval in a collection: search."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from limner.bounds import Alpha, Count, Weight
from limner.cli.app import USE, app
from limner.cli.options import (
    MIN_CONFIDENCE,
    BackboneOption,
    DeviceOption,
    ForceOption,
    IndexOption,
    JsonOption,
    MinConfidenceOption,
    ModelOption,
    Number,
    SearchedCollectionOption,
    SearchedSplitOption,
    names_given,
    refuse,
    require_one_model,
)
from limner.cli.search_folder import FolderSearch, search_folder
from limner.cli.terminal import echo, err, print_json, progress_bar, tab_separated
from limner.errors import SettingsError

FolderOption = Annotated[
    Path | None, typer.Option("--in", metavar="FOLDER", help="Folder of images with an index of 'limner index'.")
]
ExactOption = Annotated[bool, typer.Option("--exact", help="Score all images, not only candidates of an index.")]
MaxScoredOption = Annotated[
    int | None,
    typer.Option(
        "--max-scored",
        help="With --collection: score at most this number of images, even if the result is then not proven.",
        parser=Number(Count),
    ),
]
SlackOption = Annotated[
    float | None,
    typer.Option(
        "--slack",
        help="With --collection: leave out images that can be better than the last result by at most this "
        "log-probability; default: 0.",
        parser=Number(Weight),
    ),
]
SheetOption = Annotated[
    Path | None,
    typer.Option("--sheet", metavar="FILE", help="With --in: write a contact sheet, an image or an .html page."),
]
FOLDER_BY_SENTENCE, FOLDER_BY_IMAGE = "with --in FOLDER by a sentence", "with --in FOLDER by an image"
COLLECTION_BY_SENTENCE, COLLECTION_BY_IMAGE = "with --collection by a sentence", "with --collection by an image"
REGIONS = "with --collection and --regions"
IN_COLLECTION = (COLLECTION_BY_SENTENCE, COLLECTION_BY_IMAGE, REGIONS)
USES = {
    "--collection": IN_COLLECTION,
    "--regions": (REGIONS,),
    "--split": IN_COLLECTION,
    "--index": (FOLDER_BY_SENTENCE, FOLDER_BY_IMAGE, COLLECTION_BY_SENTENCE),
    "--exact": (FOLDER_BY_SENTENCE, COLLECTION_BY_SENTENCE),
    "--max-scored": (COLLECTION_BY_SENTENCE,),
    "--slack": (COLLECTION_BY_SENTENCE,),
    "--alpha": (COLLECTION_BY_IMAGE,),
    "--min-confidence": (REGIONS,),
    "--sheet": (FOLDER_BY_SENTENCE, FOLDER_BY_IMAGE),
    "--force": (FOLDER_BY_SENTENCE, FOLDER_BY_IMAGE),
    "--backbone": (FOLDER_BY_IMAGE, COLLECTION_BY_IMAGE),
}
"""The searches in which an option has an effect; the other options have one in all."""


@app.command(rich_help_panel=USE)
def search(
    query: Annotated[
        str,
        typer.Argument(
            help="A sentence, for images; an image, for similar ones with --in, for sentences with --collection."
        ),
    ],
    model: ModelOption = None,
    *,
    collection: SearchedCollectionOption = None,
    folder: FolderOption = None,
    index: IndexOption = None,
    split: SearchedSplitOption = None,
    count: Annotated[int, typer.Option("--count", help="Number of results.", parser=Number(Count))] = 5,
    regions: Annotated[
        bool, typer.Option("--regions", help="Retrieve regions of the images, with a dense captioner.")
    ] = False,
    min_confidence: MinConfidenceOption = None,
    exact: ExactOption = False,
    max_scored: MaxScoredOption = None,
    slack: SlackOption = None,
    alpha: Annotated[
        float | None,
        typer.Option(
            "--alpha",
            help="For an image in a collection: weight of log P(sentence), which is subtracted; default: 1.",
            parser=Number(Alpha),
        ),
    ] = None,
    sheet: SheetOption = None,
    force: ForceOption = False,
    backbone: BackboneOption = None,
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Retrieve the images of a folder that a sentence describes, or that are similar to an image.

    In a collection, retrieve images by a sentence, or sentences by an image; with --regions, regions by a sentence.

    Example: `limner search "a dog on the beach" --in photos`
    """
    by_file = _is_file(query, regions)
    use = _use_of(query, by_file, regions, folder, collection)
    given: dict[str, object] = {
        "--collection": collection,
        "--regions": regions,
        "--split": split,
        "--index": index,
        "--exact": exact,
    }
    given |= {"--max-scored": max_scored, "--slack": slack, "--alpha": alpha, "--min-confidence": min_confidence}
    given |= {"--sheet": sheet, "--force": force, "--backbone": backbone}
    _refuse_options_of_other_uses(use, given)
    if folder is not None:
        moved = require_one_model(model, "search") if model else None
        options = FolderSearch(folder, index, moved, by_file, count, exact, sheet, force, device, backbone)
        search_folder(query, options, as_json)
        return
    run = require_one_model(model, "search")
    assert collection is not None, "a search without --in has a collection"
    if use == REGIONS:
        confidence = MIN_CONFIDENCE if min_confidence is None else min_confidence
        _search_regions(query, run, collection, split, count, confidence, device, as_json)
        return
    if exact:
        refuse(
            {"--index": index, "--max-scored": max_scored, "--slack": slack},
            "has no effect with --exact, which scores all images; leave it out",
        )
    from limner.cli.search_collection import CollectionSearch, search_collection

    limits = (index, exact, max_scored, slack or 0.0)
    weight = 1.0 if alpha is None else alpha
    chosen = CollectionSearch(collection, run, split, count, by_file, *limits, weight)
    search_collection(query, chosen, device, backbone, as_json)


def _use_of(query: str, by_file: bool, regions: bool, folder: Path | None, collection: Path | None) -> str:
    """Return which of the five searches the options ask for.

    Raises:
        SettingsError: neither a folder nor a collection was given.
    """
    if folder is not None:
        return FOLDER_BY_IMAGE if by_file else FOLDER_BY_SENTENCE
    if collection is None:
        raise SettingsError(
            "nothing to search: expected --in FOLDER, a folder of images that 'limner index' has read, or --collection "
            "DIR; give one of them"
        )
    if regions:
        return REGIONS
    return COLLECTION_BY_IMAGE if by_file else COLLECTION_BY_SENTENCE


def _refuse_options_of_other_uses(use: str, given: Mapping[str, object]) -> None:
    """Raise SettingsError for an option that has no effect in this search."""
    for name in names_given(given):
        if use not in (uses := USES[name]):
            raise SettingsError(f"{name}: has an effect only {' or '.join(uses)}, got a search {use}; leave it out")


def _is_file(query: str, regions: bool) -> bool:
    """Whether a query is an image or audio file; SettingsError for other files, and for regions, if it is a file."""
    from limner.media.modality import find_modality, names_file

    by_file = find_modality(query) is not None
    if regions and names_file(query):
        raise SettingsError(
            f"'{query}': expected a sentence, as --regions retrieves regions by a sentence, got the name of a file; "
            "give a sentence, such as \"a red ball\", or find the regions of one image with 'limner regions'"
        )
    if not by_file and names_file(query):
        raise SettingsError(
            f"'{query}': expected a sentence, or an image or audio file with a known suffix, got another file; give "
            "the sentence itself"
        )
    return by_file


def _search_regions(
    query: str,
    run: Path,
    collection: Path,
    split: str | None,
    count: int,
    min_confidence: float,
    device: str,
    as_json: bool,
) -> None:
    """Print the regions of a collection that a sentence describes best."""
    from limner.data.collection import Collection
    from limner.inference.region_retriever import retrieve_regions
    from limner.runs.trained_model import load_trained_model

    with progress_bar("searching") as progress:
        results = retrieve_regions(
            load_trained_model(run, device),
            query,
            Collection.open(collection),
            split=split,
            count=count,
            min_confidence=min_confidence,
            on_progress=progress,
        )
    if not results:
        err.print(f"no region has a confidence of {min_confidence:g} or more; lower --min-confidence", soft_wrap=True)
    if as_json:
        print_json([result._asdict() for result in results])
        return
    for result in results:
        box = " ".join(f"{value:.0f}" for value in result.box)
        fields = (f"{result.score:.2f}", result.image, box, f"{result.confidence:.3f}", result.description)
        echo(tab_separated(*fields))

"""The command for retrieval in folders of images and in collections: search."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from limner.apps.cli import options
from limner.apps.cli.app import USE
from limner.apps.cli.regions import MIN_CONFIDENCE
from limner.apps.cli.terminal import activity, err, print_json, print_rows, progress_bar
from limner.bounds import Bounds, Count, Probability, Weight
from limner.decoding.sentence import NOT_SURE
from limner.errors import FolderError, SettingsError, counted
from limner.storage.outputs import claim_file, save_output

if TYPE_CHECKING:
    from limner.apps.photos.index import FolderIndex, FolderMatch
    from limner.data.collection import Collection
    from limner.inference.retriever import ImageSearch, RetrievalResult

PAGE_SUFFIX = ".html"
FOLDER_BY_SENTENCE, FOLDER_BY_IMAGE = "with --in FOLDER by a sentence", "with --in FOLDER by an image"
COLLECTION_BY_SENTENCE, COLLECTION_BY_IMAGE = "with --collection by a sentence", "with --collection by an image"
REGIONS = "with --collection and --regions"
IN_COLLECTION = (COLLECTION_BY_SENTENCE, COLLECTION_BY_IMAGE, REGIONS)
USES = {
    "collection": IN_COLLECTION,
    "regions": (REGIONS,),
    "split": IN_COLLECTION,
    "index": (FOLDER_BY_SENTENCE, FOLDER_BY_IMAGE, COLLECTION_BY_SENTENCE),
    "exact": (COLLECTION_BY_SENTENCE,),
    "max_scored": (COLLECTION_BY_SENTENCE,),
    "slack": (COLLECTION_BY_SENTENCE,),
    "alpha": (COLLECTION_BY_IMAGE,),
    "min_confidence": (REGIONS,),
    "sheet": (FOLDER_BY_SENTENCE, FOLDER_BY_IMAGE),
    "force": (FOLDER_BY_SENTENCE, FOLDER_BY_IMAGE),
    "backbone": (COLLECTION_BY_IMAGE,),
    "model": (*IN_COLLECTION,),
}
"""Searches in which an option has an effect; other options have an effect in all searches."""


@options.command(USE)
def search(
    query: str,
    *,
    model: options.ModelOption = None,
    collection: Path | None = None,
    folder: Path | None = None,
    index: Path | None = None,
    split: str | None = None,
    count: Count = 5,
    regions: bool = False,
    min_confidence: Probability | None = None,
    exact: bool = False,
    max_scored: Count | None = None,
    slack: Weight | None = None,
    alpha: Annotated[float, Bounds(0, 10, whole=False)] | None = None,
    sheet: Path | None = None,
    force: bool = False,
    backbone: str | None = None,
    device: str = "cpu",
    as_json: bool = False,
) -> None:
    """Retrieve the images of a folder that a sentence describes, or that are similar to an image.

    In a collection, retrieve images by a sentence, or sentences by an image; with --regions, regions by a sentence.

    Example: `limner search "a dog on the beach" --in photos`

    Options:
        query: A sentence, for images; an image, for similar images with --in, for sentences with --collection.
        collection (DIR): Collection to search, with items and features.
        folder (--in FOLDER): Folder of images with an index of 'limner index'.
        split: Split to search; default: all splits.
        count: Number of results.
        regions: Retrieve regions of the images, with a dense captioner.
        min_confidence: Leave out regions whose confidence is lower, 0-1; default: 0.05.
        exact: With --collection: score all images, not only candidates of an index.
        max_scored: With --collection: score at most this number of images, even if the result is then not proven.
        slack: With --collection: leave out images that can be better than the last result by at most this
            log-probability; default: 0.
        alpha: For an image in a collection: weight of log P(sentence), which is subtracted; default: 1.
        sheet (FILE): With --in: write a contact sheet, an image or an .html page.
    """
    by_file = _is_file(query, regions)
    if folder is None and collection is None:
        raise SettingsError(
            "nothing to search: expected --in FOLDER, a folder of images that 'limner index' has read, or --collection "
            "DIR; give one of them"
        )
    if folder is not None:
        use = FOLDER_BY_IMAGE if by_file else FOLDER_BY_SENTENCE
    else:
        use = REGIONS if regions else COLLECTION_BY_IMAGE if by_file else COLLECTION_BY_SENTENCE
    values: dict[str, object] = {"collection": collection, "regions": regions, "split": split, "index": index}
    values |= {"exact": exact, "max_scored": max_scored, "slack": slack, "alpha": alpha, "sheet": sheet}
    values |= {"min_confidence": min_confidence, "force": force, "backbone": backbone, "model": model}
    for name, uses in USES.items():
        if use not in uses:
            reason = f"has an effect only {' or '.join(uses)}, got a search {use}; leave it out"
            options.refuse({name: values[name]}, reason)
    if folder is not None:
        if sheet is not None:
            from limner.apps.report.images import SHEET_FORMATS

            if sheet.suffix.lower() not in (suffixes := (*SHEET_FORMATS, PAGE_SUFFIX)):
                expected = f"expected the name of a file that ends in {', '.join(suffixes)}, such as sheet.png"
                raise SettingsError(f"--sheet {sheet}: {expected}")
            claim_file(sheet, "--sheet", force=force)
        from limner.apps.photos.index import FolderIndex

        return _search_folder(query, FolderIndex.open(folder, index), by_file, count, sheet, as_json)
    run = options.require_one_model(model, "search")
    assert collection is not None, "a search without --in has a collection"
    if exact:
        useless = {"index": index, "max_scored": max_scored, "slack": slack}
        options.refuse(useless, "has no effect with --exact, which scores all images; leave it out")
    options.check_runs([run], device, backbone=backbone)
    from limner.data.collection import Collection

    opened = Collection.open(collection)
    opened.require_split(split)
    place: dict[str, Any] = {"split": split, "count": count}
    if regions:
        confidence = MIN_CONFIDENCE if min_confidence is None else min_confidence
        return _search_regions(query, run, opened, {**place, "min_confidence": confidence}, device, as_json)
    from limner.inference.retriever import Retriever
    from limner.retrieval.index.protocol import SearchOptions

    with activity("loading the model"):
        retriever = Retriever.load(run, backbone=backbone, device=device, encode_images=by_file)
    if by_file:
        with progress_bar("computing P(w), once for this model and collection") as progress:
            sentences = retriever.retrieve_sentences(
                query, opened, on_progress=progress, **place, **options.without_none(alpha=alpha)
            )
        return _print_results(sentences, {}, as_json)
    scoring = SearchOptions(exact, max_scored, slack or 0.0)
    with progress_bar("searching") as progress:
        ranked = retriever.search_images(query, opened, index=index, options=scoring, on_progress=progress, **place)
    _print_images(ranked, as_json)


def _print_images(search: ImageSearch, as_json: bool) -> None:
    """Print the images that a sentence describes best, and the extent of the search."""
    if not as_json and search.kind is not None:
        total = counted(search.images, "image")
        line = f"index '{search.kind}': scored {search.scored:,} of {total} ({search.share:.2%})"
        proof = "others may be better; --exact scores all"
        if search.gap is not None:
            proof = f"others are better by at most {search.gap:.2f}; --exact scores all"
        err.print(f"{line}; {'these are the best of all' if search.exact else proof}", soft_wrap=True, highlight=False)
    _print_results(search.results, {"search": search.facts()}, as_json)


def _print_results(results: Sequence[RetrievalResult], facts: dict[str, object], as_json: bool) -> None:
    if as_json:
        return print_json([{**result._asdict(), **facts} for result in results])
    rows = [(f"{result.score:.2f}", result.image or "", result.text) for result in results]
    print_rows(("score", "image", "text"), rows)


def _is_file(query: str, regions: bool) -> bool:
    """Whether a query is an image or audio file; SettingsError for other files, and for regions, if it is a file."""
    from limner.media.modality import find_modality, names_file

    by_file = find_modality(query) is not None
    if names_file(query) and (regions or not by_file):
        expected = "a sentence" if regions else "a sentence, or an image or audio file with a known suffix"
        other = "; 'limner describe --regions' describes the regions of an image" if regions else ""
        raise SettingsError(f"'{query}': expected {expected}, got another file; give the sentence itself{other}")
    return by_file


def _search_regions(
    query: str, run: Path, opened: Collection, place: dict[str, Any], device: str, as_json: bool
) -> None:
    """Print the regions of a collection that a sentence describes best."""
    from limner.inference.regions import retrieve_regions

    (model,) = options.load_runs([run], device)
    with progress_bar("searching") as progress:
        results = retrieve_regions(model, query, opened, on_progress=progress, **place)
    if not results:
        confidence = f"{place['min_confidence']:g}"
        err.print(f"no region has a confidence of {confidence} or more; lower --min-confidence", soft_wrap=True)
    if as_json:
        return print_json([result._asdict() for result in results])
    rows = []
    for result in results:
        box = " ".join(f"{value:.0f}" for value in result.box)
        rows.append((f"{result.score:.2f}", result.image, box, f"{result.confidence:.3f}", result.description))
    print_rows(("score", "image", "box", "confidence", "description"), rows)


def _search_folder(
    query: str, opened: FolderIndex, by_file: bool, count: int, sheet: Path | None, as_json: bool
) -> None:
    """Print the images of a folder that a sentence describes, or that are similar to an image."""
    with activity("searching"):
        matches = opened.similar(query, count) if by_file else opened.search(query, count)
    saved = None if sheet is None else save_output(sheet, lambda file: _save_sheet(query, opened, matches, file))
    if as_json:
        names = ("score", "caption", "confidence", "tags")
        facts = [{name: getattr(match, name) for name in names} | {"abstained": not match.is_sure} for match in matches]
        print_json([{"image": str(match.path), **fact} for match, fact in zip(matches, facts, strict=True)])
    else:
        rows = [
            (f"{match.score:.2f}", match.path, match.caption or _not_sure(opened))
            + (() if match.confidence is None else (f"{match.confidence:.2f}",))
            for match in matches
        ]
        print_rows(("score", "image", "caption", "confidence of the caption"), rows)
    if saved is not None:
        if saved.error is None:
            err.print(f"contact sheet: {saved.path}", soft_wrap=True, highlight=False)
        saved.require()


def _not_sure(index: FolderIndex) -> str:
    """Return the text in place of a caption that is withheld, in the language of the captions."""
    return NOT_SURE.get(index.record.lang, NOT_SURE["en"])


def _save_sheet(query: str, index: FolderIndex, matches: list[FolderMatch], file: Path) -> None:
    from PIL import Image

    from limner.apps.report.images import draw_tiles, jpeg_url, save_sheet
    from limner.apps.report.rendering import STYLES, render_page
    from limner.files import write_text

    names = [os.fsencode(match.path).decode(errors="backslashreplace") for match in matches]
    thumbnails = [index.thumbnail(match.path) or b"" for match in matches]
    if file.suffix.lower() == PAGE_SUFFIX:
        pairs = list(zip(names, matches, map(jpeg_url, thumbnails), strict=True))
        values = {"query": query, "matches": pairs, "not_sure": _not_sure(index)}
        page = render_page("matches.html", styles=STYLES[:1], scripts=(), **values)
        write_text(file, page)
    elif matches:
        opened = map(Image.open, map(io.BytesIO, thumbnails))
        tiles = [(image, match.caption or _not_sure(index)) for image, match in zip(opened, matches, strict=True)]
        notes = [f"{name}  {match.score:.2f}" for name, match in zip(names, matches, strict=True)]
        save_sheet(draw_tiles(tiles, notes), file)
    else:
        raise FolderError("the search has found no image, so that there is no contact sheet; add images to the index")

"""Search in a collection: `limner search QUERY --collection COLLECTION --model RUN`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from limner.cli.preflight import check_runs
from limner.cli.terminal import activity, echo, err, print_json, progress_bar, tab_separated

if TYPE_CHECKING:
    from limner.data.collection import Collection
    from limner.inference.retrieval_results import ImageSearch
    from limner.inference.retriever import Retriever


class CollectionSearch(NamedTuple):
    """Options of a search in a collection."""

    collection: Path
    run: Path
    split: str | None
    results: int
    by_file: bool
    """Whether the query is an image."""
    place: Path | None
    """Folder of the index; None for that of the run."""
    exact: bool
    """Whether all images are scored."""
    max_scored: int | None
    slack: float
    alpha: float = 1.0
    """Weight of log P(w) in a search by an image."""


def search_collection(query: str, search: CollectionSearch, device: str, backbone: str | None, as_json: bool) -> None:
    """Print the images of a collection for a sentence, or its sentences for an image."""
    from limner.data.collection import Collection
    from limner.inference.retriever import Retriever

    check_runs([search.run], device, backbone=backbone)
    opened = Collection.open(search.collection)
    opened.require_split(search.split)
    with activity("loading the model"):
        retriever = Retriever.load(search.run, backbone=backbone, device=device, encode_images=search.by_file)
    facts: dict[str, object] = {}
    if search.by_file:
        with progress_bar("computing P(w), once for this model and collection") as progress:
            results = retriever.retrieve_sentences(
                query, opened, split=search.split, count=search.results, alpha=search.alpha, on_progress=progress
            )
    else:
        found = _search_images(retriever, query, opened, search)
        results, facts = found.results, {"search": found.facts()}
        if not as_json and found.kind is not None:
            err.print(_summary(found), soft_wrap=True, highlight=False)
    if as_json:
        print_json([{**result._asdict(), **facts} for result in results])
        return
    for result in results:
        echo(tab_separated(f"{result.score:.2f}", result.image or "", result.text))


def _search_images(retriever: Retriever, query: str, collection: Collection, search: CollectionSearch) -> ImageSearch:
    from limner.retrieval.index.protocol import SearchOptions

    with progress_bar("searching") as progress:
        return retriever.search_images(
            query,
            collection,
            split=search.split,
            count=search.results,
            index=search.place,
            options=SearchOptions(search.exact, search.max_scored, search.slack),
            on_progress=progress,
        )


def _summary(found: ImageSearch) -> str:
    """Return how the images were found, as a line."""
    line = f"index '{found.kind}': scored {found.scored:,} of {found.images:,} images ({found.share:.2%})"
    if found.exact:
        return f"{line}; these are the best of all"
    if found.gap is None:
        return f"{line}; others may be better; --exact scores all"
    return f"{line}; others are better by at most {found.gap:.2f}; --exact scores all"

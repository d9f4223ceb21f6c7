"""The index of a collection: `limner index COLLECTION --model RUN`."""

from __future__ import annotations

from pathlib import Path

from limner.cli.preflight import check_runs
from limner.cli.terminal import activity, echo, print_json, printable, progress_bar


def index_collection(
    collection: Path,
    run: Path,
    split: str | None,
    place: Path | None,
    rebuild: bool,
    device: str,
    as_json: bool,
    retriever: Path | None = None,
) -> None:
    """Build the index of a collection for a model, and print what was done."""
    from limner.data.collection import Collection
    from limner.inference.retriever import Retriever
    from limner.runs.trained_model import load_trained_model

    check_runs([run, *([] if retriever is None else [retriever])], device)
    opened = Collection.open(collection)
    opened.require_split(split)
    with activity("loading the model"):
        searcher = Retriever.load(run, device=device, encode_images=False)
        two_tower = None if retriever is None else load_trained_model(retriever, device)
    with progress_bar("indexing") as bar:
        built = searcher.build_index(
            opened, split=split, path=place, retriever=two_tower, rebuild=rebuild, on_progress=bar
        )
    if as_json:
        print_json({**built._asdict(), "path": str(built.path)})
        return
    state = "built" if built.is_new else "is up to date"
    echo(f"{printable(built.path)}: index '{built.kind}' of {built.images:,} images {state}")

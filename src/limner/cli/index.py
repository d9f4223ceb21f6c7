"""The command that makes folders of images and collections searchable: index."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from limner.cli.app import USE, app
from limner.cli.index_collection import index_collection
from limner.cli.options import (
    BackboneOption,
    CaptionBatchSizeOption,
    CaptionerOption,
    DeviceOption,
    IndexOption,
    JsonOption,
    LangOption,
    model_or_pretrained,
    refuse,
    require_one_model,
)
from limner.cli.preflight import check_runs
from limner.cli.terminal import activity, echo, err, print_error, print_json, printable, progress_bar
from limner.errors import DamagedIndexError, FolderError, SettingsError
from limner.storage.places import is_collection

if TYPE_CHECKING:
    from limner.folders.index import FolderIndex
    from limner.folders.update import FolderUpdate

SHOWN = 10
"""Number of unreadable files that are listed; --json lists all."""
CAPTIONED_TOGETHER = 32
"""Default of --batch-size."""


RecursiveOption = Annotated[
    bool, typer.Option("--recursive/--no-recursive", help="Include images in the folders of the folder.")
]
VerifyOption = Annotated[
    bool, typer.Option("--verify", help="Compare the contents of all files, not only their sizes and times.")
]
RebuildOption = Annotated[
    bool, typer.Option("--rebuild", help="Replace the index, such as one of another model or a damaged one.")
]
RetrieverOption = Annotated[
    Path | None,
    typer.Option(
        "--retriever",
        metavar="RUN",
        help="Of a collection: two-tower model whose nearest images are the candidates of a search.",
    ),
]
WatchOption = Annotated[
    bool, typer.Option("--watch", help="Go on after the update, and update again whenever images change.")
]


@app.command(rich_help_panel=USE)
def index(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of images, with the folders inside, or a collection.")
    ],
    model: CaptionerOption = None,
    lang: LangOption = None,
    *,
    split: Annotated[
        str | None, typer.Option("--split", help="Of a collection: split to index; default: all splits.")
    ] = None,
    retriever: RetrieverOption = None,
    index: IndexOption = None,
    recursive: RecursiveOption = True,
    verify: VerifyOption = False,
    rebuild: RebuildOption = False,
    watch: WatchOption = False,
    backbone: BackboneOption = None,
    device: DeviceOption = "cpu",
    batch_size: CaptionBatchSizeOption = CAPTIONED_TOGETHER,
    as_json: JsonOption = False,
) -> None:
    """Store captions, thumbnails and features of the images in a folder, for `limner search --in FOLDER`.

    The index is stored in `FOLDER/.limner`. It is updated by the same command: only new and changed images are read,
    and files that were moved or renamed keep their captions. An interrupted update continues where it ended.

    Of a collection, make the index by which `limner search --collection` scores few of the images.

    Example: `limner index photos`
    """
    if is_collection(folder):
        folder_only = {"--lang": lang, "--no-recursive": not recursive, "--verify": verify, "--watch": watch}
        folder_only |= {"--backbone": backbone, "--batch-size": batch_size != CAPTIONED_TOGETHER}
        refuse(folder_only, f"{folder} is a collection, whose features are stored; leave it out")
        run = require_one_model(model, "index")
        index_collection(folder, run, split, index, rebuild, device, as_json, retriever)
        return
    refuse(
        {"--split": split, "--retriever": retriever},
        f"has an effect only on a collection, which {folder} is not; leave it out",
    )
    from limner.folders.index import FolderIndex

    run = model_or_pretrained(model, lang, "index")
    check_runs([run], device, backbone=backbone)
    opened = FolderIndex(folder, index)
    if not rebuild:
        opened.require_run(run)
    if watch:
        _require_watch(as_json)
    elif not (rebuild or verify):
        unchanged = opened.find_unchanged(run, recursive=recursive)
        if unchanged is not None:
            return _report(unchanged, opened, as_json)
    from limner.inference.captioner import Captioner

    with activity("loading the model"):
        captioner = Captioner.load(run, backbone=backbone, device=device)

    def update(rebuild: bool = False) -> FolderUpdate:
        with progress_bar("indexing") as bar:
            return opened.update(
                captioner, bar, recursive=recursive, verify=verify, rebuild=rebuild, batch_size=batch_size
            )

    result = update(rebuild)
    _report(result, opened, as_json)
    if watch:
        _watch(opened, recursive, update)
    if result.unreadable:
        raise typer.Exit(1)


def _require_watch(as_json: bool) -> None:
    """Check that a folder can be watched."""
    from limner.folders.watch import require_watchfiles

    if as_json:
        raise SettingsError("--json and --watch: give one or the other")
    require_watchfiles()


def _watch(opened: FolderIndex, recursive: bool, update: Callable[[], FolderUpdate]) -> None:
    """Update whenever images change, until the command is interrupted."""
    from limner.folders.watch import watch_folder

    err.print(f"watching {printable(opened.folder)}; stop with Ctrl-C", soft_wrap=True)
    for _ in watch_folder(opened.folder, recursive, opened.path):
        try:
            result = update()
        except FolderError as error:  # such as of a folder that is empty for a moment, or that another process indexes
            if isinstance(error, DamagedIndexError) or not opened.folder.is_dir():
                raise
            print_error(error)
            continue
        if result.has_changes:
            _print(result, opened)


def _report(result: FolderUpdate, opened: FolderIndex, as_json: bool) -> None:
    """Print what the update has done, as text or as JSON."""
    if as_json:
        print_json({**vars(result), "files": result.files})
    else:
        _print(result, opened)


def _print(result: FolderUpdate, opened: FolderIndex) -> None:
    """Print what an update has done, and the files that it could not read."""
    counts = {
        "new": result.added,
        "changed": result.changed,
        "moved": result.moved,
        "removed": result.removed,
        "unchanged": result.unchanged,
    }
    parts = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "no images"
    echo(f"{printable(opened.path)}: {result.files:,} images ({parts})")
    for _, reason in sorted(result.unreadable.items())[:SHOWN]:
        err.print(f"not read: {printable(reason)}", soft_wrap=True, highlight=False)
    if (more := len(result.unreadable)) > SHOWN:
        err.print(f"not read: {more - SHOWN:,} more; --json lists all", soft_wrap=True, highlight=False)

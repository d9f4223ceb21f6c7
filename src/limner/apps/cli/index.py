"""The command that makes folders of images and collections searchable: index."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from limner.apps.cli import options
from limner.apps.cli.app import USE
from limner.apps.cli.terminal import activity, echo, err, print_json, printable, progress_bar
from limner.bounds import BatchSize
from limner.errors import SettingsError, counted
from limner.hub.settings import HubSettings
from limner.runs.pretrained import local_folder, model_type
from limner.storage.places import is_collection

if TYPE_CHECKING:
    from limner.apps.photos.index import FolderIndex
    from limner.apps.photos.update import FolderUpdate

SHOWN = 10
"""Number of unreadable files that are listed; --json lists all."""
CAPTIONED_TOGETHER = 32
"""Default of --batch-size."""


@options.command(USE)
def index(
    folder: Path,
    *,
    model: options.CaptionerOption = None,
    lang: str | None = None,
    hub: options.HubOptions,
    split: str | None = None,
    retriever: Path | None = None,
    index: Path | None = None,
    recursive: bool = True,
    verify: bool = False,
    rebuild: bool = False,
    backbone: str | None = None,
    device: str = "cpu",
    batch_size: BatchSize = CAPTIONED_TOGETHER,
    as_json: bool = False,
) -> None:
    """Store captions, thumbnails and features of the images in a folder, for `limner search --in FOLDER`.

    The index is stored in `FOLDER/.limner`. It is updated by the same command: only new and changed images are read,
    and files that were moved or renamed keep their captions. An interrupted update continues where it ended.

    Of a collection, make the index by which `limner search --collection` scores few of the images.

    Example: `limner index photos`

    Options:
        folder (FOLDER): Folder of images, with the folders inside, or a collection.
        split: Of a collection: split to index; default: all splits.
        retriever (RUN): Of a collection: two-tower model whose nearest images are the candidates of a search. Of a
            folder: joint space of the hub that searches it, such as hub:openai/clip-vit-base-patch32.
        recursive (--recursive/--no-recursive): Include images in the folders of the folder.
        verify: Compare the contents of all files, not only their sizes and times.
        rebuild: Replace the index, such as one of another model or a damaged one.
    """
    if is_collection(folder):
        folder_only = {"--lang": lang, "--no-recursive": not recursive, "--verify": verify}
        folder_only |= {**hub, "--backbone": backbone, "--batch-size": batch_size != CAPTIONED_TOGETHER}
        options.refuse(folder_only, f"{folder} is a collection, whose features are stored; leave it out")
        run, values = options.require_one_model(model, "index"), {"split": split, "path": index, "rebuild": rebuild}
        return _index_collection(folder, run, retriever, values, device, as_json)
    retriever = None if retriever is None else Path(local_folder(retriever))
    values = {"--split": split, "--retriever": None if retriever and model_type(retriever) else retriever}
    options.refuse(values, f"has an effect only on a collection, which {folder} is not; leave it out")
    run = options.require_one_model(options.models_or_pretrained(model, lang, hub), "index")
    changed = HubSettings.parse(hub).changed
    from limner.runtime.manifest import is_exported

    if not is_exported(run) and model_type(run) is None:
        options.check_runs([run], device, backbone=backbone)
    from limner.apps.photos.index import FolderIndex
    from limner.generation.captioning import BaseCaptioner
    from limner.inference.load import load

    searcher = None
    if retriever is not None:
        from limner.hub.families.joint_space import HubSpace

        searcher = HubSpace(retriever, device)
    opened = FolderIndex(folder, index, searcher)
    is_new = index is None and not opened.path.exists()
    if not rebuild:
        opened.require_run(run, changed)
    if not (rebuild or verify):
        unchanged = opened.find_unchanged(run, changed, recursive=recursive)
        if unchanged is not None:
            return _report(unchanged, opened, as_json)
    with activity("loading the model"):
        captioner = load(run, backbone=backbone, device=device, **hub)
    if not isinstance(captioner, BaseCaptioner):
        raise SettingsError(f"--model {run}: expected a model that describes images; name a captioner")
    with progress_bar("indexing") as bar:
        result = opened.update(
            captioner, bar, recursive=recursive, verify=verify, rebuild=rebuild, batch_size=batch_size
        )
    if is_new:
        note = f"the index is in {printable(opened.path)}; --index DIR names another place"
        err.print(note, soft_wrap=True, highlight=False)
    _report(result, opened, as_json)
    if result.unreadable:
        raise typer.Exit(1)


def _report(result: FolderUpdate, opened: FolderIndex, as_json: bool) -> None:
    """Print the result of an update, and its unreadable files."""
    if as_json:
        return print_json({**vars(result), "files": result.files})
    names = ("new", "changed", "moved", "removed", "unchanged")
    counts = (result.added, result.changed, result.moved, result.removed, result.unchanged)
    parts = ", ".join(f"{count:,} {name}" for count, name in zip(counts, names, strict=True) if count) or "no images"
    echo(f"{printable(opened.path)}: {counted(result.files, 'image')} ({parts})")
    for _, reason in sorted(result.unreadable.items())[:SHOWN]:
        err.print(f"not read: {printable(reason)}", soft_wrap=True, highlight=False)
    if (more := len(result.unreadable)) > SHOWN:
        err.print(f"not read: {more - SHOWN:,} more; --json lists all", soft_wrap=True, highlight=False)


def _index_collection(
    collection: Path, run: Path, retriever: Path | None, values: dict[str, Any], device: str, as_json: bool
) -> None:
    """Build the index of a collection for a model, and print the result."""
    options.check_runs([run] if retriever is None else [run, retriever], device)
    from limner.data.collection import Collection
    from limner.inference.retriever import Retriever

    opened = Collection.open(collection)
    opened.require_split(values["split"])
    with activity("loading the model"):
        searcher = Retriever.load(run, device=device, encode_images=False)
    (two_tower,) = [None] if retriever is None else options.load_runs([retriever], device)
    with progress_bar("indexing") as bar:
        built = searcher.build_index(opened, retriever=two_tower, on_progress=bar, **values)
    if as_json:
        return print_json({**built._asdict(), "path": str(built.path)})
    state = "built" if built.is_new else "is up to date"
    echo(f"{printable(built.path)}: index '{built.kind}' of {counted(built.images, 'image')} {state}")

"""Search in the index of a folder of images: `limner search QUERY --in FOLDER`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from limner.cli.terminal import activity, echo, err, print_json, tab_separated
from limner.errors import SettingsError
from limner.storage.outputs import SavedOutput, claim_file, save_output

if TYPE_CHECKING:
    from limner.folders.index import FolderIndex, FolderMatch

PAGE_SUFFIX = ".html"


class FolderSearch(NamedTuple):
    """Options of a search in a folder."""

    folder: Path
    """Folder with an index."""
    place: Path | None
    """Folder of the index, if it is not in the folder."""
    run: Path | None
    """Captioner, if it has moved since the index was made; None for the recorded one."""
    by_file: bool
    """Whether the query is an image."""
    results: int
    """Number of results."""
    exact: bool
    """Whether all images of a large index are scored."""
    sheet: Path | None
    """File of the contact sheet, if one is written."""
    force: bool
    """Whether a file that Limner did not write is replaced."""
    device: str
    backbone: str | None


def search_folder(query: str, options: FolderSearch, as_json: bool) -> None:
    """Print the images of a folder that a sentence describes, or that are similar to an image."""
    from limner.folders.index import FolderIndex

    _, index, run, by_file, count, exact, sheet, force, device, backbone = options
    if sheet is not None:
        _claim_sheet(sheet, force)
    opened = FolderIndex.open(options.folder, index)
    with activity("loading the model"):
        opened.load_captioner(run, encode_images=by_file, device=device, backbone=backbone)
    with activity("searching"):
        matches = opened.similar(query, count) if by_file else opened.search(query, count, exact=exact or None)
    complete = by_file or exact or opened.is_exact
    saved = None if sheet is None else save_output(sheet, lambda file: _save_sheet(query, matches, file))
    if as_json:
        print_json([_record(match, complete) for match in matches])
    else:
        for match in matches:
            confidence = () if match.confidence is None else (f"{match.confidence:.2f}",)
            echo(tab_separated(f"{match.score:.2f}", match.path, match.display_text, *confidence))
    if not complete:
        err.print(_coverage(opened), soft_wrap=True, highlight=False)
    if saved is not None:
        if saved.error is None:
            err.print(f"contact sheet: {saved.path}", soft_wrap=True, highlight=False)
        saved.require()


def _record(match: FolderMatch, complete: bool) -> dict[str, object]:
    return {
        "image": str(match.path),
        "score": match.score,
        "caption": match.caption,
        "confidence": match.confidence,
        "abstained": not match.is_sure,
        "tags": list(match.tags),
        "exact": complete,
    }


def _coverage(opened: FolderIndex) -> str:
    from limner.folders.search import CANDIDATES

    return f"scored {CANDIDATES:,} candidates of {len(opened):,} images; --exact scores all"


def _claim_sheet(sheet: Path, force: bool) -> None:
    from limner.report.images import SHEET_FORMATS

    if sheet.suffix.lower() not in (*SHEET_FORMATS, PAGE_SUFFIX):
        expected = ", ".join((*SHEET_FORMATS, PAGE_SUFFIX))
        raise SettingsError(f"--sheet {sheet}: expected the name of a file that ends in {expected}, such as sheet.png")
    claim_file(sheet, "--sheet", force=force)


def _save_sheet(query: str, matches: list[FolderMatch], file: Path) -> SavedOutput | None:
    from limner.report.images import draw_matches, write_match_page

    if file.suffix.lower() == PAGE_SUFFIX:
        write_match_page(query, matches, file)
    else:
        from limner.report.images import save_sheet

        save_sheet(draw_matches(matches), file)
    return None

"""Regions of images with their descriptions, as `limner describe --regions` prints and draws them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limner.apps.cli.inputs import find_input_files
from limner.apps.cli.options import check_runs, claim_image, require_one_model
from limner.apps.cli.terminal import echo, err, print_json, progress_bar, report_unreadable, tab_separated
from limner.errors import MediaError, SettingsError
from limner.storage.outputs import SavedOutput, claim_file, require_saved, save_output

if TYPE_CHECKING:
    from limner.inference.regions import RegionCaption

MIN_CONFIDENCE = 0.05
"""Default of `--min-confidence` for regions."""


def print_regions(
    images: Sequence[Path],
    model: list[Path] | None,
    count: int,
    min_confidence: float | None,
    decoding: Mapping[str, Any],
    sheet: Path | None,
    backbone: str | None,
    device: str,
    *,
    recursive: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Print the boxes of the `count` most confident regions of images with their confidences and descriptions.

    A line begins with the path of the image if there are several. The boxes are drawn to `sheet`, if any: a file for
    one image, or a folder.

    Raises:
        SettingsError: not one `model`, or a setting of `decoding` or a file of `sheet` is not allowed.
        RunError: the model does not detect regions.
    """
    if not model or str(model[0]).startswith("hub:"):
        raise SettingsError(
            "--regions: the built-in captioner and models of the hub do not detect regions; name a run with --model "
            "('limner train johnson2016/flickr30k-entities' trains a dense captioner)"
        )
    run = require_one_model(model, "describe --regions")
    check_runs([run], device, decoding, backbone)
    from limner.inference.regions import RegionCaptioner
    from limner.media.modality import IMAGE

    files = find_input_files(images, IMAGE, (IMAGE,), recursive)
    drawings = _drawings(files, sheet, force, is_single=len(files) == 1 and not images[0].is_dir())
    captioner = RegionCaptioner.load(run, backbone=backbone, device=device)
    confidence = MIN_CONFIDENCE if min_confidence is None else min_confidence
    records: list[dict[str, Any]] = []
    unreadable: list[MediaError] = []
    drawn: list[SavedOutput] = []
    with progress_bar("finding regions") as bar:
        for done, file in enumerate(files, 1):
            try:
                (captions,) = captioner.describe([file], count=count, min_confidence=confidence, **decoding)
            except MediaError as error:
                unreadable.append(error)
            else:
                records.append({"image": str(file), "regions": [caption._asdict() for caption in captions]})
                for caption in () if as_json else captions:
                    box = " ".join(f"{value:.0f}" for value in caption.box)
                    prefix = [file] if len(files) > 1 else []
                    echo(tab_separated(*prefix, box, f"{caption.score:.3f}", caption.text))
                if not captions:
                    reason = f"no region has a confidence of {confidence:g} or more; lower --min-confidence"
                    reason = reason if confidence else "no region lies within the image; train the model longer"
                    err.print(f"{file}: {reason}", soft_wrap=True)
                if file in drawings:
                    drawn.append(save_output(drawings[file], partial(_draw, file, captions)))
            if len(files) > 1:
                bar(done, len(files))
    if as_json:
        print_json(records)
    require_saved(drawn)
    report_unreadable(unreadable, len(files))


def _drawings(files: Sequence[Path], sheet: Path | None, force: bool, *, is_single: bool) -> dict[Path, Path]:
    """Return the output file of each image, after a check that it may be written; empty without `sheet`."""
    if sheet is None:
        return {}
    if sheet.suffix and not sheet.is_dir():
        if not is_single:
            raise SettingsError(
                f"--sheet: expected a folder for several images, got the file {sheet}; leave out its suffix"
            )
        return {files[0]: claim_image(sheet, "--sheet", force)}
    drawings = {file: sheet / f"{file.stem}.png" for file in files}
    names = list(drawings.values())
    if same := next((name for name in names if names.count(name) > 1), None):
        raise SettingsError(
            f"--sheet: expected images of different names, got two that are drawn to {same}; rename one"
        )
    return {file: claim_file(drawing, "--sheet", force=force) for file, drawing in drawings.items()}


def _draw(file: Path, captions: Sequence[RegionCaption], drawing: Path) -> None:
    from limner.apps.report.images import draw_regions, save_sheet
    from limner.media.image import open_image

    labels = [(caption.box, f"{caption.score:.2f} {caption.text}") for caption in captions]
    save_sheet(draw_regions(open_image(file), labels), drawing)

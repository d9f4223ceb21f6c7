"""The command that finds and describes the regions of images: regions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from limner.apps.cli.app import USE
from limner.apps.cli.describe import report_unreadable
from limner.apps.cli.inputs import find_input_files
from limner.apps.cli.options import MIN_CONFIDENCE, ModelOption, check_runs, claim_image, command, require_one_model
from limner.apps.cli.terminal import echo, err, print_json, progress_bar, tab_separated
from limner.bounds import Count, Probability
from limner.decoding.settings import DecodingSettings
from limner.errors import MediaError, SettingsError
from limner.storage.outputs import SavedOutput, claim_file, require_saved, save_output

if TYPE_CHECKING:
    from limner.inference.regions import RegionCaption


@command(USE)
def regions(
    images: list[Path],
    *,
    model: ModelOption = None,
    out: Path | None = None,
    count: Count = 10,
    min_confidence: Probability | None = None,
    decoding: Annotated[dict[str, Any], DecodingSettings, "beam_size"],
    backbone: str | None = None,
    device: str = "cpu",
    recursive: bool = False,
    force: bool = False,
    as_json: bool = False,
) -> None:
    """Find the regions of images and describe each of them, with a dense captioner.

    Prints the left, top, width and height of each box in pixels, its confidence and its description; after the path of
    the image if there are several.

    Example: `limner regions photo.jpg --model runs/dense --out boxes.png`

    Options:
        images (IMAGE...): Image files, or folders of them.
        out (PATH): Folder for PNG files with the boxes and descriptions, named like the images; for a single image also
            a PNG or JPEG file.
        count: Number of regions, the most confident first.
    """
    run = require_one_model(model, "regions")
    check_runs([run], device, decoding, backbone)
    from limner.inference.regions import RegionCaptioner
    from limner.media.modality import IMAGE

    files = find_input_files(images, IMAGE, (IMAGE,), recursive)
    drawings = _drawings(files, out, force, is_single=len(images) == 1 and not images[0].is_dir())
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


def _drawings(files: Sequence[Path], out: Path | None, force: bool, *, is_single: bool) -> dict[Path, Path]:
    """Return the output file of each image, after a check that it may be written; empty without `out`."""
    if out is None:
        return {}
    if out.suffix and not out.is_dir():
        if not is_single:
            raise SettingsError(
                f"--out: expected a folder for several images, got the file {out}; leave out its suffix"
            )
        return {files[0]: claim_image(out, "--out", force)}
    drawings = {file: out / f"{file.stem}.png" for file in files}
    names = list(drawings.values())
    if same := next((name for name in names if names.count(name) > 1), None):
        raise SettingsError(f"--out: expected images of different names, got two that are drawn to {same}; rename one")
    return {file: claim_file(drawing, "--out", force=force) for file, drawing in drawings.items()}


def _draw(file: Path, captions: Sequence[RegionCaption], drawing: Path) -> None:
    from limner.apps.report.images import draw_regions, save_sheet
    from limner.media.image import open_image

    labels = [(caption.box, f"{caption.score:.2f} {caption.text}") for caption in captions]
    save_sheet(draw_regions(open_image(file), labels), drawing)

"""The command that finds and describes the regions of an image: regions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from limner.cli.app import USE, app
from limner.cli.options import (
    BackboneOption,
    BeamSizeOption,
    DeviceOption,
    JsonOption,
    ModelOption,
    given,
    require_one_model,
)
from limner.cli.terminal import activity, print_json


@app.command(rich_help_panel=USE)
def regions(
    image: Annotated[Path, typer.Argument(help="Image file.")],
    model: ModelOption = None,
    *,
    out: Annotated[
        Path | None, typer.Option("--out", help="PNG or JPEG file to draw the boxes and descriptions to.")
    ] = None,
    count: Annotated[int, typer.Option("--count", help="Number of regions, the most confident first.", min=1)] = 10,
    beam_size: BeamSizeOption = None,
    backbone: BackboneOption = None,
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Find the regions of an image and describe each of them, with a dense captioner.

    Prints the left, top, width and height of each box in pixels, its confidence and its description.

    Example: `limner regions photo.jpg --model runs/dense --out boxes.png`
    """
    run = require_one_model(model, "regions")
    from limner.inference.region_captioner import RegionCaptioner
    from limner.media.image import open_image
    from limner.report.contact_sheet import save_sheet
    from limner.report.region_drawing import draw_regions

    captioner = RegionCaptioner.load(run, backbone=backbone, device=device)
    with activity("finding regions"):
        (found,) = captioner.describe([image], count=count, **given(beam_size=beam_size))
    if out is not None:
        save_sheet(draw_regions(open_image(image), [(one.box, one.text) for one in found]), out)
    if as_json:
        print_json([one._asdict() for one in found])
        return
    for one in found:
        box = " ".join(f"{value:.0f}" for value in one.box)
        typer.echo(f"{box}\t{one.score:.3f}\t{one.text}")

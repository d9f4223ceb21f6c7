"""The command that captions images: describe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from limner.cli.app import USE, app
from limner.cli.attention import AttentionOptions, StripPlotter, attention_options
from limner.cli.options import (
    AttentionOption,
    BackboneOption,
    BeamSizeOption,
    CaptionBatchSizeOption,
    DeviceOption,
    ExplainBeamOption,
    JsonOption,
    LengthPenaltyOption,
    MaxLengthOption,
    MinLengthOption,
    ModelsOption,
    NBestOption,
    SampleOption,
    SamplingSeedOption,
    TemperatureOption,
    TopKOption,
    TopPOption,
    given,
    require_models,
)
from limner.cli.terminal import print_error, print_json, progress_bar
from limner.errors import MediaError, SettingsError

if TYPE_CHECKING:
    from limner.media.modality import Modality

CompareOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--compare",
        metavar="RUN",
        help="With --attention: plot the attention of this model for the same captions below. Repeatable.",
    ),
]


@app.command(rich_help_panel=USE)
def describe(
    images: Annotated[
        list[Path],
        typer.Argument(
            metavar="IMAGE...",
            help="Image or video files, or folders of them; audio files for an audio model.",
        ),
    ],
    model: ModelsOption = None,
    prefix: Annotated[
        str | None, typer.Option("--prefix", help="Words that every caption starts with; default: none.")
    ] = None,
    beam_size: BeamSizeOption = None,
    n_best: NBestOption = None,
    length_penalty: LengthPenaltyOption = None,
    min_length: MinLengthOption = None,
    max_length: MaxLengthOption = None,
    sample: SampleOption = False,
    temperature: TemperatureOption = None,
    top_k: TopKOption = None,
    top_p: TopPOption = None,
    seed: SamplingSeedOption = None,
    batch_size: CaptionBatchSizeOption = 32,
    backbone: BackboneOption = None,
    device: DeviceOption = "cpu",
    explain_beam: ExplainBeamOption = None,
    attention: AttentionOption = None,
    compare: CompareOption = None,
    as_json: JsonOption = False,
) -> None:
    """Generate captions of images and videos, or of audio files with a model trained on audio features.

    Decoding options that are not given come from the `decoding` section of the model's recipe.

    Example: `limner describe photo.jpg --model runs/mrnn --beam-size 5 --n-best 3`
    """
    sampling = given(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    if sampling and not sample:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in sampling)
        raise SettingsError(f"{names} {'has' if len(sampling) == 1 else 'have'} an effect only with --sample")
    decoding = given(
        beam_size=beam_size,
        n_best=n_best,
        length_penalty=length_penalty,
        min_length=min_length,
        max_length=max_length,
        sample=sampling if sample else None,
    )
    plots = attention_options(attention, compare)
    if explain_beam is not None:
        if plots is not None:
            raise SettingsError("--attention and --explain-beam: give one or the other")
        if as_json:
            raise SettingsError("--json has no effect on --explain-beam; name a file that ends in .json")
        _explain_beam(images, require_models(model), prefix, decoding, backbone, device, explain_beam)
    elif not _describe(images, require_models(model), prefix, decoding, batch_size, backbone, device, as_json, plots):
        raise typer.Exit(1)


def _describe(
    images: Sequence[Path],
    runs: Sequence[Path],
    prefix: str | None,
    decoding: dict[str, Any],
    batch_size: int,
    backbone: str | None,
    device: str,
    as_json: bool,
    attention: AttentionOptions | None,
) -> bool:
    """Print the captions, and plot their attention; return whether every file could be read."""
    from limner.inference.captioner import Captioner
    from limner.media.modality import readable_by

    captioner = Captioner.load(*runs, backbone=backbone, device=device)
    strips = None if attention is None else StripPlotter(captioner, runs, attention, backbone=backbone, device=device)
    files = expand_folders(images, captioner.modality, readable_by(captioner.modality))
    prefixes = [prefix] * len(files) if prefix else None
    records: list[dict[str, Any]] = []
    unreadable = 0
    visible = as_json or not sys.stdout.isatty()  # captions on a terminal show the progress themselves
    with progress_bar("describing") if visible else nullcontext(None) as bar:
        results = captioner.describe_each(files, prefixes=prefixes, batch_size=batch_size, **decoding)
        for done, (file, (_, result)) in enumerate(zip(files, results, strict=True), 1):
            if isinstance(result, MediaError):
                unreadable += 1
                print_error(result)
            elif as_json:
                captions = [{"text": one.text, "log_prob": one.log_prob, "score": one.score} for one in result]
                records.append({"image": str(file), "captions": captions})
            else:
                for caption in result:
                    log_prob = f"\t{caption.log_prob:.2f}" if len(result) > 1 else ""
                    typer.echo(f"{file}\t{caption.text}{log_prob}")
            if strips is not None and not isinstance(result, MediaError):
                strips.add(file, result[0])
            if bar is not None and len(files) > 1:
                bar(done, len(files))
    if as_json:
        print_json(records)
    if strips is not None:
        strips.save()
    return not unreadable


def _explain_beam(
    images: Sequence[Path],
    runs: Sequence[Path],
    prefix: str | None,
    decoding: dict[str, Any],
    backbone: str | None,
    device: str,
    out: Path,
) -> None:
    """Write the tree of the beam of one image, and print its captions unless the tree is printed."""
    from limner.cli.beam import STANDARD_OUTPUT, require_beam_file, write_beam
    from limner.inference.captioner import Captioner

    require_beam_file(out, len(images))
    (image,) = images
    if image.is_dir():
        raise SettingsError(
            f"--explain-beam explains the search of one file, got the folder {image}; name a file in it"
        )
    captioner = Captioner.load(*runs, backbone=backbone, device=device)
    explanation = captioner.explain_beam(image, prefix=prefix, **decoding)
    write_beam(explanation, out)
    if out != STANDARD_OUTPUT:
        for one in explanation.hypotheses:
            typer.echo(f"{image}\t{captioner.tokenizer.decode(one.tokens, detokenise=True)}\t{one.log_prob:.2f}")


def expand_folders(paths: Sequence[Path], modality: Modality, readable: Sequence[Modality]) -> list[Path]:
    """Replace each folder by the files in it of the readable modalities, for a model of a modality."""
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(file for file in path.iterdir() if any(one.matches(file) for one in readable))
            if not inside:
                expected = ", ".join(sorted(suffix for one in readable for suffix in one.suffixes))
                raise SettingsError(f"{path}: no {modality.plural} in this folder; expected {expected}")
            files += inside
        else:
            files.append(path)
    return files

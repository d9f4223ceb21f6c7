"""The command that captions images: describe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from limner.cli.app import USE, app
from limner.cli.attention import AttentionOptions, StripPlotter, attention_options
from limner.cli.beam import explain_caption, require_beam_file
from limner.cli.caption_output import CaptionFormat, WriteCaptions, caption_output, choose_format
from limner.cli.exported import is_exported, require_exported_options
from limner.cli.options import (
    DECODING,
    EXPLANATIONS,
    INPUT,
    OUTPUT,
    AttentionOption,
    BackboneOption,
    BeamSizeOption,
    CaptionBatchSizeOption,
    CaptionersOption,
    DeviceOption,
    ExplainBeamOption,
    ForceOption,
    JsonOption,
    LangOption,
    LengthPenaltyOption,
    MaxLengthOption,
    MinCaptionConfidenceOption,
    MinLengthOption,
    MustIncludeOption,
    NBestOption,
    NoTagsInCaptionsOption,
    RayOption,
    SampleOption,
    SamplingSeedOption,
    TagsOption,
    TemperatureOption,
    TopKOption,
    TopPOption,
    given,
    models_or_pretrained,
    names_given,
    refuse,
)
from limner.cli.preflight import check_runs
from limner.cli.stored_captions import EmbedOption, ReplaceOption, SidecarOption, StoredCaptions, WriteOption
from limner.cli.terminal import activity, print_error, progress_bar
from limner.errors import LimnerError, MediaError, SettingsError

if TYPE_CHECKING:
    from limner.inference.captioner import Captioner
    from limner.inference.sentences import Caption
    from limner.runtime.generators import ExportedCaptioner

CompareOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--compare",
        metavar="RUN",
        help="With --attention: plot the attention of this model for the same captions below. Repeatable.",
        rich_help_panel=EXPLANATIONS,
    ),
]
RecursiveOption = Annotated[
    bool, typer.Option("--recursive", help="Find files in the folders of a folder as well.", rich_help_panel=INPUT)
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output",
        metavar="FILE",
        help="Write the captions to a file as they are decided; the suffix selects the format: .txt, .tsv, .csv, "
        ".jsonl or .json; default: standard output.",
        rich_help_panel=OUTPUT,
    ),
]
FormatOption = Annotated[
    CaptionFormat | None,
    typer.Option(
        "--format",
        help="Format of the captions; default: by the suffix of --output, else text.",
        rich_help_panel=OUTPUT,
    ),
]


ImagesArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="IMAGE...",
        help="Image or video files, or folders of them; audio files for an audio model; - for a list of files on "
        "standard input.",
    ),
]
PrefixOption = Annotated[
    str | None,
    typer.Option("--prefix", help="Words that every caption starts with; default: none.", rich_help_panel=DECODING),
]


@app.command(rich_help_panel=USE)
def describe(
    images: ImagesArgument,
    model: CaptionersOption = None,
    lang: LangOption = None,
    prefix: PrefixOption = None,
    must_include: MustIncludeOption = None,
    tags: TagsOption = False,
    no_tags_in_captions: NoTagsInCaptionsOption = False,
    min_confidence: MinCaptionConfidenceOption = None,
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
    recursive: RecursiveOption = False,
    output: OutputOption = None,
    format_: FormatOption = None,
    write: WriteOption = None,
    embed: EmbedOption = False,
    sidecar: SidecarOption = None,
    replace: ReplaceOption = False,
    ray: RayOption = None,
    explain_beam: ExplainBeamOption = None,
    attention: AttentionOption = None,
    compare: CompareOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Generate captions of images and videos, or of audio files with a model trained on audio features.

    Decoding options that are not given come from the `decoding` section of the model's recipe.
    Without --model, the built-in captioner is used: English, German (--lang de) or Chinese (--lang zh).
    Example: `limner describe photo.jpg --n-best 3`
    """
    sampling = _sampling(sample, given(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed), must_include)
    lengths = {"length_penalty": length_penalty, "min_length": min_length, "max_length": max_length}
    decoding = given(beam_size=beam_size, n_best=n_best, **lengths, sample=sampling)
    plots = attention_options(attention, compare, force)
    needs_run: dict[str, Any] = {"--attention": plots, "--write": write, "--embed": embed, "--tags": tags}
    needs_run |= {"--no-tags-in-captions": no_tags_in_captions, "--min-confidence": min_confidence}
    _require_stored(ray, bool(write or embed) and plots is None and explain_beam is None)
    if explain_beam is not None:
        others = needs_run | {"--format": format_, "--output": output}
        _claim_beam(explain_beam, images, force, as_json, recursive, others)
        runs = models_or_pretrained(model, lang)
        return explain_caption(images[0], runs, prefix, must_include, decoding, backbone, device, explain_beam)
    kind = choose_format(format_, as_json, output, force)
    runs = models_or_pretrained(model, lang)
    if is_exported(runs[0]):
        needs_run |= {"--must-include": must_include, "--backbone": backbone, "--ray": ray}
        require_exported_options(runs, needs_run, device)
        found = _find_images(images, recursive)
        return _describe_exported(runs[0], found, prefix, {"batch_size": batch_size, **decoding}, output, kind)
    stored = StoredCaptions(write, embed, replace, sidecar)
    files = stored.select(_find_files(images, runs, decoding, backbone, device, recursive), images)
    if stored.complete(files):
        return report_unreadable(stored.errors, stored.total)
    captioner, strips = _load(runs, backbone, device, plots)
    options = _selection(captioner, tags, no_tags_in_captions, min_confidence)
    options |= {"must_include": must_include, "batch_size": batch_size, **decoding}
    cluster = None if ray is None else _cluster(ray, runs, files, prefix, options, backbone, device)
    _describe_with_runs(captioner, files, prefix, options, (output, kind), stored, strips, cluster)


def _require_stored(ray: str | None, stored: bool) -> None:
    """Refuse a cluster unless the captions are only stored with the images."""
    if not stored:
        refuse({"--ray": ray}, "has an effect only with --write or --embed, and without plots; leave it out")


def _cluster(
    address: str,
    runs: Sequence[Path],
    files: Sequence[Path],
    prefix: str | None,
    options: dict[str, Any],
    backbone: str | None,
    device: str,
) -> Iterator[tuple[Path, list[Caption] | MediaError]]:
    """Return the captions of files that a Ray cluster computes."""
    from limner.distributed.captions import describe_distributed

    journal = files[0].parent / ".captions.units"
    return describe_distributed(
        runs, files, address, journal, prefix=prefix, options=options, backbone=backbone, device=device
    )


def _selection(captioner: Captioner, tags: bool, no_tags: bool, min_confidence: float | None) -> dict[str, Any]:
    """Return the options of tags and confidence, after a check that the model has them."""
    if not captioner.rules.names_tags:
        refuse({"--no-tags-in-captions": no_tags}, "this model never requires tags; leave it out")
    captioner.check_options(with_tags=tags, name_tags=not no_tags, min_confidence=min_confidence)
    return {"with_tags": tags, "name_tags": not no_tags, "min_confidence": min_confidence}


def _find_images(images: Sequence[Path], recursive: bool) -> list[Path]:
    """Return the images to describe."""
    from limner.cli.input_files import find_input_files
    from limner.media.modality import IMAGE

    return find_input_files(images, IMAGE, (IMAGE,), recursive)


def _describe_exported(
    folder: Path,
    files: Sequence[Path],
    prefix: str | None,
    options: dict[str, Any],
    output: Path | None,
    kind: CaptionFormat,
) -> None:
    """Write captions of an exported model, without torch."""
    from limner.runtime import load_captioner

    captioner = load_captioner(folder)
    with caption_output(output, kind) as write_caption:
        unreadable = _describe(captioner, files, prefix, options, (write_caption,), None)
    report_unreadable(unreadable, len(files))


def _sampling(sample: bool, options: dict[str, Any], must_include: list[str] | None) -> dict[str, Any] | None:
    """Return the settings of sampling; None for beam search, which has none."""
    if options and not sample:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in options)
        raise SettingsError(f"{names} {'has' if len(options) == 1 else 'have'} an effect only with --sample")
    if sample:
        refuse({"--must-include": must_include}, "needs beam search; leave out --sample")
    return options if sample else None


def _find_files(
    images: Sequence[Path],
    runs: Sequence[Path],
    decoding: dict[str, Any],
    backbone: str | None,
    device: str,
    recursive: bool,
) -> list[Path]:
    """Return the files to describe, after a check of the other options; nothing is loaded."""
    from limner.cli.input_files import find_input_files
    from limner.media.modality import IMAGE, MODALITIES, readable_by

    features = check_runs(runs, device, decoding, backbone).features
    modality = MODALITIES[features[0].modality] if features else IMAGE
    return find_input_files(images, modality, readable_by(modality), recursive)


def _load(
    runs: Sequence[Path], backbone: str | None, device: str, attention: AttentionOptions | None
) -> tuple[Captioner, StripPlotter | None]:
    """Load the models, and prepare the plots of their attention."""
    from limner.inference.captioner import Captioner

    with activity("loading the model"):
        captioner = Captioner.load(*runs, backbone=backbone, device=device)
        if attention is None:
            return captioner, None
        return captioner, StripPlotter(captioner, runs, attention, backbone=backbone, device=device)


def _describe_with_runs(
    captioner: Captioner,
    files: Sequence[Path],
    prefix: str | None,
    options: dict[str, Any],
    printed: tuple[Path | None, CaptionFormat],
    stored: StoredCaptions,
    strips: StripPlotter | None,
    cluster: Iterator[tuple[Path, list[Caption] | MediaError]] | None = None,
) -> None:
    """Write captions of trained models, then report unreadable files."""
    columns = (*(["confidence"] if captioner.rules.has_confidence else []), *(["tags"] if options["with_tags"] else []))
    opened = stored.opened(captioner.models[0].recipe.data.lang, columns)
    with caption_output(*printed, columns) as write_caption, opened as store:
        unreadable = _describe(captioner, files, prefix, options, (write_caption, store), strips, cluster)
    if strips is not None:
        strips.save()
    stored.report()
    report_unreadable([*unreadable, *stored.errors], stored.total)


def _describe(
    captioner: Captioner | ExportedCaptioner,
    files: Sequence[Path],
    prefix: str | None,
    options: dict[str, Any],
    writers: Sequence[WriteCaptions],
    strips: StripPlotter | None,
    cluster: Iterator[tuple[Path, list[Caption] | MediaError]] | None = None,
) -> list[MediaError]:
    """Write the captions of each file as soon as they are decided; return the errors of unreadable files."""
    unreadable: list[MediaError] = []
    prefixes = [prefix] * len(files) if prefix else None
    results = cluster or captioner.describe_each(files, prefixes=prefixes, **options)
    with progress_bar("describing", prints=True) as bar:
        for done, (file, (_, result)) in enumerate(zip(files, results, strict=True), 1):
            for write in writers:
                write(file, result)
            if isinstance(result, MediaError):
                unreadable.append(result)
            elif strips is not None:
                strips.add(file, result[0])
            if len(files) > 1:
                bar(done, len(files))
    return unreadable


def report_unreadable(errors: Sequence[LimnerError], total: int) -> None:
    """Print the errors of unreadable files after the results of the others, and exit with status 1 if there are any."""
    for error in errors:
        print_error(error)
    if len(errors) > 1:
        print_error(f"{len(errors):,} of {total:,} files cannot be read; the others are done")
    if errors:
        raise typer.Exit(1)


def _claim_beam(
    out: Path, images: Sequence[Path], force: bool, as_json: bool, recursive: bool, others: dict[str, Any]
) -> None:
    """Check the options of --explain-beam before the model is loaded."""
    if names := names_given(others):
        raise SettingsError(f"{names[0]} and --explain-beam: give one or the other")
    refuse({"--recursive": recursive}, "--explain-beam explains the search of one file; leave one of them out")
    if as_json:
        raise SettingsError("--json has no effect on --explain-beam; name a file that ends in .json")
    if images[0].is_dir():
        raise SettingsError(
            f"--explain-beam explains the search of one file, got the folder {images[0]}; name a file in it"
        )
    require_beam_file(out, len(images), force)

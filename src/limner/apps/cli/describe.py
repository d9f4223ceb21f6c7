"""The command that captions images: describe."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from limner.apps.cli.app import USE
from limner.apps.cli.caption_output import (
    CaptionFormat,
    StoredCaptions,
    WriteCaptions,
    WriteKind,
    caption_output,
    choose_format,
)
from limner.apps.cli.explanations import StripPlotter, claim_plots, explain_caption, require_beam_file
from limner.apps.cli.inputs import find_input_files
from limner.apps.cli.options import (
    CaptionersOption,
    Decoding,
    Sampling,
    check_runs,
    command,
    is_exported,
    models_or_pretrained,
    refuse,
    require_exported_options,
)
from limner.apps.cli.terminal import activity, print_error, progress_bar
from limner.bounds import BatchSize, Probability
from limner.errors import LimnerError, MediaError

if TYPE_CHECKING:
    from limner.decoding.sentence import Sentence
    from limner.inference.captioner import Captioner


@command(USE)
def describe(
    images: list[Path],
    *,
    model: CaptionersOption = None,
    lang: str | None = None,
    prefix: str | None = None,
    must_include: list[str] | None = None,
    tags: bool = False,
    no_concepts: bool = False,
    min_confidence: Probability | None = None,
    decoding: Decoding,
    sample: bool = False,
    sampling: Sampling,
    batch_size: BatchSize = 32,
    backbone: str | None = None,
    device: str = "cpu",
    recursive: bool = False,
    output: Path | None = None,
    format_: CaptionFormat | None = None,
    write: WriteKind | None = None,
    embed: bool = False,
    sidecar: Literal["full", "stem"] | None = None,
    replace: bool = False,
    ray: str | None = None,
    explain_beam: Path | None = None,
    attention: Path | None = None,
    compare: list[Path] | None = None,
    force: bool = False,
    as_json: bool = False,
) -> None:
    """Generate captions of images and videos, or of audio files with a model trained on audio features.

    Decoding options that are not given come from the `decoding` section of the model's recipe.
    Without --model, the built-in captioner is used: English, German (--lang de) or Chinese (--lang zh).
    Example: `limner describe photo.jpg --n-best 3`

    Options:
        images (IMAGE...): Image or video files, or folders of them; audio files for an audio model; - for a list of
            files on standard input.
        batch_size: Images captioned together; captions do not depend on it.

    Decoding:
        prefix: Words that every caption starts with; default: none.

    Concepts:
        tags: Print nouns for the things in each image, with probabilities.
        no_concepts: Print the captions of the search alone, which the concepts of the built-in captioner otherwise
            choose, replace by a plain sentence or withhold.
        min_confidence: Replace or withhold captions whose first thing is less probable, 0-1; default: as chosen with
            the concepts of the model.

    Sampling:
        sample: Sample tokens from the model's distribution instead of beam search.

    Input:
        recursive: Find files in the folders of a folder as well.

    Output:
        output (FILE): Write the captions to a file as they are decided; the suffix selects the format: .txt, .tsv,
            .csv, .jsonl or .json; default: standard output.
        format_: Format of the captions; default: by the suffix of --output, else text.
        write: Store the captions beside the images, one file for each: txt or xmp (photo.txt, photo.jpg.xmp).
        embed: Store the captions in the image files, as XMP: JPEG, PNG and WebP; pixels are kept.
        sidecar: With --write xmp: name of the sidecar of photo.jpg, full for photo.jpg.xmp (digiKam, darktable) or stem
            for photo.xmp (Adobe); default: full.
        replace: With --write or --embed: replace captions that are there; default: keep them.

    Explanations:
        compare (RUN): With --attention: plot the attention of this model for the same captions below. Repeatable.
    """
    refuse({} if sample else sampling, "has an effect only with --sample; add it, or leave it out")
    refuse({"must_include": sample and must_include}, "needs beam search; leave out --sample")
    refuse({"compare": attention is None and compare}, "adds models to the plots of --attention DIR; give both")
    if attention or explain_beam or not (output or write or embed):
        refuse({"ray": ray}, "has an effect only with --output, --write or --embed, and without plots; leave it out")
    if attention is not None:
        claim_plots(attention, force)
    decoding |= {"sample": sampling} if sample else {}
    needs_run: dict[str, Any] = {"attention": attention, "write": write, "embed": embed, "tags": tags}
    needs_run |= {"no_concepts": no_concepts, "min_confidence": min_confidence}
    if explain_beam is not None:
        useless = {"format": format_, "output": output, "recursive": recursive, "json": as_json}
        refuse(needs_run | useless, "has no effect on --explain-beam, which explains one search; leave one of them out")
        require_beam_file(explain_beam, images, force)
        runs = models_or_pretrained(model, lang)
        return explain_caption(images[0], runs, prefix, must_include, decoding, backbone, device, explain_beam)
    kind = choose_format(format_, as_json, output, force)
    runs = models_or_pretrained(model, lang)
    exported = is_exported(runs[0])
    if exported:
        others = {"must_include": must_include, "backbone": backbone, "ray": ray}
        require_exported_options(runs, needs_run | others, device)
    from limner.media.modality import IMAGE, MODALITIES, readable_by

    tables = () if exported else check_runs(runs, device, decoding, backbone).features
    modality = MODALITIES[tables[0].modality] if tables else IMAGE
    readable = (IMAGE,) if exported else readable_by(modality)
    stored = StoredCaptions(write, embed, replace, sidecar)
    files = stored.select(find_input_files(images, modality, readable, recursive))
    if not files:
        stored.report()
        return report_unreadable(stored.errors, stored.total)
    options: dict[str, Any] = {"batch_size": batch_size, **decoding}
    columns, language, strips = [], "", None
    if exported:
        from limner.runtime import load_captioner

        describe_each = load_captioner(runs[0]).describe_each
    else:
        captioner, strips = _load(runs, backbone, device, attention, compare or ())
        options |= {"must_include": must_include, **_rule_options(captioner, tags, no_concepts, min_confidence)}
        columns = [*([] if captioner.rules.concepts is None else ["confidence"]), *(["tags"] if tags else [])]
        language = captioner.models[0].recipe.data.lang
        describe_each = captioner.describe_each
    if ray is None:
        results = describe_each(files, prefixes=[prefix] * len(files) if prefix else None, **options)
    else:
        from limner.apps.distributed.sentences import describe_distributed

        place = files[0].parent / ".captions.units"
        results = describe_distributed(
            runs, files, ray, place, prefix=prefix, options=options, backbone=backbone, device=device
        )
    with caption_output(output, kind, columns) as write_caption:
        writers = (write_caption, partial(stored.store, lang=language))
        unreadable = _write(files, results, writers, strips)
    if strips is not None:
        strips.save()
    stored.report()
    report_unreadable([*unreadable, *stored.errors], stored.total)


def _load(
    runs: Sequence[Path], backbone: str | None, device: str, attention: Path | None, compared: Sequence[Path]
) -> tuple[Captioner, StripPlotter | None]:
    """Load the models, and prepare the plots of their attention."""
    from limner.inference.captioner import Captioner

    with activity("loading the model"):
        captioner = Captioner.load(*runs, backbone=backbone, device=device)
        if attention is None:
            return captioner, None
        return captioner, StripPlotter(captioner, runs, attention, compared, backbone=backbone, device=device)


def _rule_options(captioner: Captioner, tags: bool, no_concepts: bool, min_confidence: float | None) -> dict[str, Any]:
    """Return the options of tags and concepts, after a check that the model has them."""
    from limner.generation.request import RuleOptions

    if captioner.rules.concepts is None:
        refuse({"no_concepts": no_concepts}, "this model has no concepts; leave it out")
    captioner.rules.check(RuleOptions(tags, not no_concepts, min_confidence))
    return {"with_tags": tags, "concepts": not no_concepts, "min_confidence": min_confidence}


def _write(
    files: Sequence[Path],
    results: Iterable[tuple[Path, list[Sentence] | MediaError]],
    writers: Sequence[WriteCaptions],
    strips: StripPlotter | None,
) -> list[MediaError]:
    """Write the captions of each file as soon as they are decided; return the errors of unreadable files."""
    unreadable: list[MediaError] = []
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

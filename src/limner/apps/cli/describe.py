"""The command that captions images: describe."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from limner.apps.cli import options
from limner.apps.cli.app import USE
from limner.apps.cli.caption_output import CaptionFormat, caption_output, choose_format
from limner.apps.cli.explanations import claim_plots, explain_caption, load_compared, plot_captions, require_beam_file
from limner.apps.cli.inputs import find_input_files
from limner.apps.cli.regions import print_regions
from limner.apps.cli.stored_captions import StoredCaptions, WriteKind
from limner.apps.cli.terminal import activity, progress_bar, report_unreadable
from limner.bounds import BatchSize, Count, Probability
from limner.decoding.settings import change_decoding
from limner.errors import LimnerError, MissingExtraError, SettingsError, counted
from limner.runs.pretrained import is_pretrained

if TYPE_CHECKING:
    from limner.decoding.sentence import Sentence
    from limner.generation.captioning import BaseCaptioner
    from limner.generation.request import RuleOptions
    from limner.inference.captioner import Captioner
    from limner.media.modality import Modality

logger = logging.getLogger(__name__)


@options.command(USE)
def describe(
    images: list[Path],
    *,
    model: options.CaptionersOption = None,
    lang: str | None = None,
    prefix: str | None = None,
    must_include: list[str] | None = None,
    tags: bool = False,
    no_concepts: bool = False,
    min_confidence: Probability | None = None,
    decoding: options.Decoding,
    sample: bool = False,
    sampling: options.Sampling,
    hub: options.HubOptions,
    batch_size: BatchSize = 32,
    backbone: str | None = None,
    device: str = "cpu",
    recursive: bool = False,
    regions: Count | None = None,
    sheet: Path | None = None,
    output: Path | None = None,
    format_: CaptionFormat | None = None,
    write: WriteKind | None = None,
    embed: bool = False,
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

    Decoding:
        prefix: Words that every caption starts with; default: none.

    Concepts:
        tags: Print the names of things in each image, with probabilities.
        no_concepts: Print the captions of the search alone, which the concepts of the built-in captioner otherwise
            choose, replace by a plain sentence or withhold.
        min_confidence: Replace or withhold captions with a thing that is less probable, 0-1; default: as chosen with
            the concepts of the model. With --regions: leave out less confident regions; default: 0.05.

    Regions:
        regions (N): Find the regions of each image with a dense captioner, which --model names, and print the boxes
            (left, top, width and height in pixels), confidences and descriptions of the N most confident.
        sheet (PATH): With --regions: PNG or JPEG file with the boxes, or a folder for the files of several images.

    Sampling:
        sample: Sample tokens from the model's distribution instead of beam search.

    Output:
        output (FILE): Write the captions to a file as they are decided; the suffix selects the format: .txt, .tsv,
            .csv, .jsonl or .json; default: standard output.
        format_: Format of the captions; default: by the suffix of --output, else text.
        write: Store the captions beside the images: csv or jsonl, one table in each folder named (captions.csv,
            captions.jsonl); txt or xmp, one file for each image (photo.txt, photo.jpg.xmp).
        embed: Store the captions in the image files, as XMP: JPEG, PNG and WebP; pixels are kept.
        replace: With --write or --embed: replace captions that are there; default: keep them.

    Explanations:
        compare (RUN): With --attention: plot the attention of this model for the same captions below. Repeatable.
    """
    options.refuse({} if sample else sampling, "has an effect only with --sample; add it, or leave it out")
    options.refuse({"must_include": sample and must_include}, "needs beam search; leave out --sample")
    options.refuse({"compare": attention is None and compare}, "adds models to the plots of --attention DIR; give both")
    options.refuse({"replace": replace and not (write or embed)}, "needs --write or --embed; add one of them")
    no_file = attention or explain_beam or not (output or write or embed)
    options.refuse({"ray": no_file and ray}, "has an effect only with --output, --write or --embed; leave it out")
    options.refuse({"sheet": regions is None and sheet}, "draws the boxes of --regions N; give both")
    if attention is not None:
        claim_plots(attention, force)
    unused: dict[str, Any] = {"attention": attention, "write": write, "embed": embed, "tags": tags, "output": output}
    unused |= {"no_concepts": no_concepts, "format": format_, "ray": ray, "sample": sample}
    if regions is not None:
        unused |= {"lang": lang, "prefix": prefix, "must_include": must_include, "n_best": decoding.get("n_best")}
        options.refuse({**unused, **hub, "explain_beam": explain_beam}, "has no effect on --regions; leave it out")
        where = (min_confidence, decoding, sheet, backbone, device)
        return print_regions(images, model, regions, *where, recursive=recursive, force=force, as_json=as_json)
    decoding |= {"sample": sampling} if sample else {}
    if explain_beam is not None:
        unused |= {"min_confidence": min_confidence, "recursive": recursive, "json": as_json}
        require_beam_file(explain_beam, images, force, unused)
        runs = options.models_or_pretrained(model, lang, hub)
        return explain_caption(images[0], runs, prefix, must_include, decoding, backbone, device, explain_beam)
    kind, runs = choose_format(format_, as_json, output, force), options.models_or_pretrained(model, lang, hub)
    graphs = options.uses_graphs(runs, {"attention": attention, "backbone": backbone, "ray": ray}, device)
    from limner.media.modality import IMAGE, MODALITIES

    features = () if graphs else options.check_runs(runs, device, decoding, backbone).features
    modality = MODALITIES[features[0].modality] if features else IMAGE
    files, graphs = _find_files(images, modality, recursive, runs[0], graphs)
    stored, total = StoredCaptions(write, embed, replace, force) if write or embed else None, len(files)
    if stored is not None and not (files := stored.select(files, images)):
        return _report_no_new(stored, caption_output(output, kind, ()) if output else nullcontext(), runs[0], total)
    from limner.generation.request import RuleOptions

    rule_options = RuleOptions(tags, not no_concepts, min_confidence)
    captioner = _load(runs, rule_options, graphs, backbone, device, hub)
    if attention is not None:
        captioners = load_compared(cast("Captioner", captioner), runs[0], compare or (), backbone, device)
    changes = {"batch_size": batch_size, "must_include": must_include, **decoding, **rule_options._asdict()}
    columns = [*([] if captioner.rules.concepts is None else ["confidence"]), *(["tags"] if tags else [])]
    if ray is None:
        results = captioner.describe_each(files, prefixes=[prefix] * len(files) if prefix else None, **changes)
    else:
        from limner.apps.distributed.sentences import describe_distributed

        loading = {"device": device, **(hub if graphs else {"backbone": backbone})}
        results = describe_distributed(runs, files, ray, prefix=prefix, options=changes, loading=loading)
    if stored is not None:
        stored.begin_tables(columns)
    ranked = change_decoding(captioner.decoding, decoding).n_best > 1
    opened = caption_output(output, kind, columns, ranked=ranked, lang=captioner.lang)
    errors: list[LimnerError] = [] if stored is None else stored.errors
    with _writer(opened, len(files), stored, captioner.lang, errors) as (write_result, described):
        for file, (_, result) in zip(files, results, strict=True):
            write_result(file, result)
    if attention is not None and described:
        plot_captions(captioners, [runs[0], *(compare or ())], described, attention)
    if stored is not None:
        stored.report(captioner.lang)
    report_unreadable(errors, total)


def _report_no_new(stored: StoredCaptions, opened: AbstractContextManager[Any], run: Path, total: int) -> None:
    """Write tables and an output without new captions, and print the numbers of kept captions and unreadable files."""
    stored.begin_tables()
    with opened:
        stored.report(run.name if is_pretrained(run) else "")
    report_unreadable(stored.errors, total)


@contextmanager
def _writer(
    opened: AbstractContextManager[Any], count: int, stored: StoredCaptions | None, lang: str, errors: list[LimnerError]
) -> Iterator[tuple[Callable[[Path, Any], None], list[tuple[Path, Sentence]]]]:
    """Return a function that writes the captions of a file, or its error, and the list of the best captions."""
    best: list[tuple[Path, Sentence]] = []
    progress = progress_bar("describing", prints=True) if count > 1 else nullcontext(lambda done, total: None)
    with opened as write_caption, progress as bar:
        done = itertools.count(1)

        def write_result(file: Path, result: Any) -> None:  # noqa: ANN401
            write_caption(file, result)
            if stored is not None:
                stored.store(file, result, lang)
            elif isinstance(result, LimnerError):
                errors.append(result)
            best.extend([(file, result[0])] if isinstance(result, list) else [])
            bar(next(done), count)

        yield write_result, best


def _find_files(
    inputs: Sequence[Path], modality: Modality, recursive: bool, run: Path, graphs: bool
) -> tuple[list[Path], bool]:
    """Return the files to describe, and whether graphs describe them: videos are described by the run of the graphs.

    Without torch, videos are skipped and logged. Errors as of `find_input_files`; SettingsError for videos if graphs
    have no run, MissingExtraError for videos alone without torch.
    """
    from limner.media.modality import IMAGE, VIDEO

    # An image is a video of one frame, and frames are images.
    readable = (IMAGE, VIDEO) if modality in (IMAGE, VIDEO) else (modality,)
    files = find_input_files(inputs, modality, readable, recursive)
    videos = [file for file in files if VIDEO.matches(file)] if graphs else []
    if videos and not is_pretrained(run):
        raise SettingsError(f"{videos[0]}: {run} is no run, and describes images only; name a run for videos")
    if not videos or find_spec("torch") is not None:
        return files, graphs and not videos
    error = MissingExtraError(f"{videos[0]}: a video", "video")
    if len(videos) == len(files):
        raise error
    logger.warning(f"{counted(len(videos), 'video')} skipped: {error}")
    return [file for file in files if not VIDEO.matches(file)], graphs


def _load(
    runs: Sequence[Path],
    rule_options: RuleOptions,
    graphs: bool,
    backbone: str | None,
    device: str,
    hub: dict[str, Any],
) -> BaseCaptioner:
    """Load a captioner, and check the options of its rules."""
    captioner: BaseCaptioner
    if not graphs:
        from limner.inference.captioner import Captioner

        with activity("loading the model"):
            captioner = Captioner.load(*runs, backbone=backbone, device=device)
    elif (runs[0] / options.MANIFEST).is_file():
        from limner.runtime.generators import load_captioner

        captioner = load_captioner(runs[0])
    else:
        from limner.inference.load import load_hub

        with activity("loading the model"):
            captioner = load_hub(runs[0], tasks=("describe",), device=device, **hub)
    if captioner.rules.concepts is None:
        options.refuse({"no_concepts": not rule_options.concepts}, "this model has no concepts; leave it out")
    captioner.rules.check(rule_options)
    return captioner

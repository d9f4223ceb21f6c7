"""The command that measures whether a model uses its images: diagnose."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from limner.bounds import FewOrNone, PositiveDeviation, Seed, Trials
from limner.cli.app import MEASURE, app, command_line
from limner.cli.options import (
    BackboneOption,
    BeamSizeOption,
    CollectionOption,
    DeviceOption,
    EvaluatedSplitOption,
    ForceOption,
    JsonOption,
    ModelOption,
    Number,
    SkipMissingOption,
    given,
    refuse,
    require_one_model,
)
from limner.cli.preflight import check_runs
from limner.cli.terminal import activity, echo, out, print_json, progress_bars
from limner.errors import SettingsError, counted
from limner.storage.names import name_or_default
from limner.storage.outputs import SavedOutput, claim_file, require_writable, save_output

if TYPE_CHECKING:
    from limner.decoding.settings import DecodingSettings
    from limner.diagnosis import ConditionResult, ContrastiveResult, Diagnosis, Grounding
    from limner.runs.recipe import Recipe

RecordOfModel = TypeVar("RecordOfModel", "Diagnosis", "Grounding")


# Options of this command.
MaskOption = Annotated[
    list[str] | None,
    typer.Option("--mask", help="Source words to mask: colours, last:3 or a file of words. Repeatable."),
]
ContrastOption = Annotated[
    Path | None,
    typer.Option(
        "--contrast",
        metavar="FILE",
        help="TSV file of contrastive pairs: two sentences for an image, or two images for a sentence.",
    ),
]
GroundingOption = Annotated[
    bool,
    typer.Option(
        "--grounding",
        help="Measure instead whether the attention over the image is inside the boxes of annotated phrases.",
    ),
]
CentreSigmaOption = Annotated[
    float | None,
    typer.Option(
        "--centre-sigma",
        help="With --grounding: standard deviation of the Gaussian of the baseline 'centre', as a fraction of each "
        "side of the grid; default: 0.25.",
        parser=Number(PositiveDeviation),
    ),
]
ExamplesOption = Annotated[
    int | None,
    typer.Option(
        "--examples",
        help="With --grounding: number of hits and of misses kept for the report; default: 6.",
        parser=Number(FewOrNone),
    ),
]
MetricOption = Annotated[
    list[str] | None,
    typer.Option(
        "--metric",
        help="Metric, the verdict uses the first; default: bleu4, chrf3, ter and perplexity. Repeatable.",
    ),
]
TrialsOption = Annotated[int, typer.Option("--trials", help="Trials of each significance test.", parser=Number(Trials))]
SeedOption = Annotated[
    int, typer.Option("--seed", help="Random seed of the tests and of the shuffled images.", parser=Number(Seed))
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE",
        help="JSON file to write; default: diagnosis/SPLIT.json in the run folder, with suffixes for --mask and "
        "--contrast; with --grounding diagnosis/grounding/SPLIT.json.",
    ),
]


@app.command(rich_help_panel=MEASURE)
def diagnose(
    model: ModelOption = None,
    *,
    collection: CollectionOption,
    split: EvaluatedSplitOption = None,
    mask: MaskOption = None,
    contrast: ContrastOption = None,
    grounding: GroundingOption = False,
    centre_sigma: CentreSigmaOption = None,
    examples: ExamplesOption = None,
    metric: MetricOption = None,
    trials: TrialsOption = 10_000,
    seed: SeedOption = 1,
    beam_size: BeamSizeOption = None,
    skip_missing: SkipMissingOption = False,
    out_file: OutOption = None,
    force: ForceOption = False,
    backbone: BackboneOption = None,
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Measure whether a model uses its images: with the right, other and no images, and with masked words.

    Example: `limner diagnose --model runs/src-img --collection collections/multi30k --mask colours --mask last:3`
    """
    run = require_one_model(model, "diagnose")
    _claim(run, out_file, force)
    of_grounding = _options_of_grounding(grounding, given(centre_sigma=centre_sigma, examples=examples))
    if grounding:
        unused = given(mask=mask, contrast=contrast, metric=metric, beam_size=beam_size, backbone=backbone)
        values = given(split=split, trials=trials, seed=seed, leave_out=skip_missing, **of_grounding)
        _measure_grounding(run, collection, values, unused, out_file, device, as_json)
        return
    if contrast is None:
        refuse({"--backbone": backbone}, "has an effect only on the image files of --contrast; leave it out")
    from limner.data.collection import Collection
    from limner.diagnosis import DiagnosisSettings, diagnosis_path
    from limner.diagnosis import diagnose as diagnose_model
    from limner.metrics import require_metrics
    from limner.runs.trained_model import load_trained_model

    require_metrics(name for name in metric or [] if name != "perplexity")
    recipe, decoding = _resolve_decoding(run, device, given(beam_size=beam_size))
    values = given(split=split, metrics=metric, masks=mask, contrastive=contrast, trials=trials, seed=seed)
    settings = DiagnosisSettings.parse({**values, "decoding": decoding, "leave_out": skip_missing})
    opened = Collection.open(collection)
    opened.require_split(name_or_default(split, recipe.data.test, "--split"))
    with activity("loading the model"):
        trained = load_trained_model(run, device)
    with progress_bars() as progress:
        diagnosis = diagnose_model(
            trained,
            opened,
            settings=settings,
            backbone=backbone,
            device=device,
            command=command_line(),
            on_progress=progress,
        )
    _report(diagnosis, save_output(out_file or diagnosis_path(diagnosis, run), diagnosis.save), _print, as_json)


def _resolve_decoding(run: Path, device: str, changes: dict[str, Any]) -> tuple[Recipe, DecodingSettings]:
    """Return the recipe of a run and its decoding settings with changes."""
    from limner.decoding.settings import DecodingSettings
    from limner.runs.recipe import Recipe

    recipe = Recipe.parse(check_runs([run], device, changes).recipe)
    return recipe, DecodingSettings.parse({**recipe.decoding.model_dump(), **changes}, "decoding")


def _claim(run: Path, out_file: Path | None, force: bool) -> None:
    """Check before the measurement that its record can be written."""
    if out_file is None:
        require_writable(run / "diagnosis", str(run))
        return
    from limner.diagnosis.records import Diagnosis, Grounding

    claim_file(out_file, "--out", force=force, is_own=lambda file: Diagnosis.is_in(file) or Grounding.is_in(file))


def _options_of_grounding(grounding: bool, options: dict[str, Any]) -> dict[str, Any]:
    """Return the given options of `--grounding`; without it they are refused."""
    if options and not grounding:
        option = next(iter(options)).replace("_", "-")
        raise SettingsError(f"--{option}: has a meaning with --grounding only; add --grounding, or leave it out")
    return options


def _measure_grounding(
    run: Path,
    collection: Path,
    values: dict[str, Any],
    unused: dict[str, Any],
    out_file: Path | None,
    device: str,
    as_json: bool,
) -> None:
    """Run `limner diagnose --grounding`; `unused` are given options without a meaning for it."""
    if unused:
        option = next(iter(unused)).replace("_", "-")
        raise SettingsError(f"--grounding: generates no sentences and has no option --{option}; leave it out")
    from limner.data.collection import Collection
    from limner.diagnosis import GroundingSettings, grounding_path, measure_grounding
    from limner.runs.trained_model import load_trained_model

    with progress_bars() as progress:
        result = measure_grounding(
            load_trained_model(run, device),
            Collection.open(collection),
            settings=GroundingSettings.parse(values),
            command=command_line(),
            on_progress=progress,
        )
    _report(result, save_output(out_file or grounding_path(result, run), result.save), _print_grounding, as_json)


def _report(
    record: RecordOfModel, saved: SavedOutput, print_record: Callable[[RecordOfModel], None], as_json: bool
) -> None:
    """Print a record as JSON or as tables, and the file that it was written to."""
    if as_json:
        print_json({"file": str(saved.path), **json.loads(record.model_dump_json())})
    else:
        print_record(record)
        echo(f"{saved.path} ({record.seconds:.1f} s)")
    saved.require()


def _print_grounding(result: Grounding) -> None:
    """Print the scores of all phrases with p-values, then the mass by entity type."""
    from rich.table import Table

    everything, *types = result.groups
    title = f"{counted(everything.phrases, 'phrase')} of {counted(everything.images, 'image')} of '{result.split}'"
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    for column in ("attention", "mass inside, %", "pointing, %"):
        table.add_column(column, justify="left" if column == "attention" else "right", no_wrap=True)
    for score in everything.scores:
        cells = [
            f"{value:.2f}" if p is None else f"{value:.2f} (p {p:.4f})"
            for value, p in ((score.mass, score.mass_p), (score.pointing, score.pointing_p))
        ]
        table.add_row(score.attention, *cells)
    out.print(table)
    names = [score.attention for score in everything.scores]
    table = Table(box=None, pad_edge=False, title="by entity type: mass inside / pointing, %", title_justify="left")
    for column in ("type", "phrases", *names):
        table.add_column(column, justify="left" if column == "type" else "right", no_wrap=True)
    for group in types:
        cells = [f"{score.mass:.1f} / {score.pointing:.1f}" for score in group.scores]
        table.add_row(group.type, f"{group.phrases:,}", *cells)
    out.print()
    out.print(table)
    for reason, count in result.excluded.items():
        echo(f"not measured: {count:,} {reason}")
    echo(f"attention correctness (maximum over the words of a phrase): {everything.correctness:.2f} %")
    echo(result.verdict)


def _print(diagnosis: Diagnosis) -> None:
    _print_conditions(f"{counted(diagnosis.sentences, 'sentence')} of '{diagnosis.split}'", diagnosis.image_controls)
    for masking in diagnosis.masking:
        sentences = counted(masking.sentences, "sentence")
        title = f"{counted(masking.masked_words, 'word')} ({masking.mask}) masked in {sentences}"
        _print_conditions(title, masking.conditions)
    if (ambiguity := diagnosis.ambiguity) is not None:
        excluded = f", {ambiguity.excluded:,} excluded" if ambiguity.excluded else ""
        sentences = counted(ambiguity.sentences, "sentence")
        title = f"{sentences} with an ambiguous word{excluded}; chance {ambiguity.chance:.0f} %"
        _print_conditions(title, ambiguity.conditions)
    if diagnosis.contrastive is not None:
        _print_contrastive(diagnosis.contrastive)
    for line in diagnosis.notes:
        echo(line)
    echo(diagnosis.verdict)


def _print_conditions(title: str, conditions: Sequence[ConditionResult]) -> None:
    """Print one row for each condition, with the differences from the first row and their p-values."""
    from rich.table import Table

    from limner.metrics.base import format_value

    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    table.add_column("images", no_wrap=True)
    for score in conditions[0].scores:
        table.add_column(score.metric, justify="right", no_wrap=True)
    table.add_column("changed", justify="right", no_wrap=True)
    for condition in conditions:
        cells = [
            format_value(score.value)
            + ("" if score.p is None else f" ({format_value(score.difference, sign='+')}, p {score.p:.4f})")
            for score in condition.scores
        ]
        table.add_row(condition.name, *cells, f"{condition.changed:.1f} %" if condition is not conditions[0] else "")
    out.print(table)
    out.print()


def _print_contrastive(result: ContrastiveResult) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title=f"pairs of {result.compared}", title_justify="left")
    for column in ("line", "log-prob correct", "log-prob incorrect"):
        table.add_column(column, justify="right")
    for pair in result.pairs:
        table.add_row(str(pair.line), f"{pair.log_prob:.3f}", f"{pair.other_log_prob:.3f}")
    out.print(table)
    accuracy = f"accuracy {result.accuracy:.1f} % on {counted(len(result.pairs), 'pair')}"
    echo(f"{accuracy} ({result.accuracy_per_token:.1f} % by mean log-probability of a token)\n")

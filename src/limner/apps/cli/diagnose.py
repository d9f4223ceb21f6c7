"""The commands that measure whether a model uses its images, and how its gradients vanish: diagnose, gradients."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from limner.apps.cli import options
from limner.apps.cli.app import MEASURE, command_line
from limner.apps.cli.terminal import echo, print_json, print_table, progress_bars
from limner.bounds import Count, Few, Seed
from limner.decoding.settings import DecodingSettings
from limner.errors import counted
from limner.runs.pretrained import results_folder
from limner.storage.outputs import claim_file, name_or_default, require_writable, save_output

if TYPE_CHECKING:
    from limner.evaluation.gradients import GradientNorms
    from limner.evaluation.measurements import ConditionResult, Diagnosis, Grounding

RecordOfModel = TypeVar("RecordOfModel", "Diagnosis", "Grounding")


@options.command(MEASURE)
def diagnose(
    *,
    model: options.ModelOption = None,
    collection: Path,
    split: str | None = None,
    mask: list[str] | None = None,
    grounding: bool = False,
    metric: list[str] | None = None,
    trials: Count = 10_000,
    seed: Seed = 1,
    decoding: Annotated[dict[str, Any], DecodingSettings, "beam_size"],
    skip_missing: bool = False,
    out_file: Path | None = None,
    force: bool = False,
    device: str = "cpu",
    as_json: bool = False,
) -> None:
    """Measure whether a model uses its images: with the right, other and no images, and with masked words.

    Example: `limner diagnose --model runs/src-img --collection collections/multi30k --mask colours --mask last:3`

    Options:
        split: Split to evaluate; default: the recipe's test split.
        mask: Source words to mask: colours, last:3 or a file of words. Repeatable.
        grounding: Measure instead whether the attention over the image is inside the boxes of annotated phrases.
        metric: Metric, the verdict uses the first; default: bleu4, chrf3, ter and perplexity. Repeatable.
        trials: Trials of each significance test.
        seed: Random seed of the tests and of the shuffled images.
        out_file (--out FILE): JSON file to write; default: diagnosis/SPLIT.json in the run folder, with suffixes for
            --mask; with --grounding diagnosis/grounding/SPLIT.json.
    """
    run = options.require_one_model(model, "diagnose")
    if out_file is None:
        require_writable(results_folder(run) / "diagnosis", str(run))
    else:
        claim_file(out_file, "--out", force=force)
    values = options.without_none(split=split, trials=trials, seed=seed, leave_out=skip_missing)
    if grounding:
        unused = {"mask": mask, "metric": metric, **decoding}
        options.refuse(unused, "has no effect on --grounding, which generates no sentences; leave it out")
        return _measure_grounding(run, collection, values, out_file, device, as_json)
    from limner.apps.diagnosis import DiagnosisSettings
    from limner.apps.diagnosis import diagnose as diagnose_model
    from limner.data.collection import Collection
    from limner.decoding.settings import change_decoding
    from limner.metrics import require_metrics
    from limner.runs.recipe import Recipe

    require_metrics(name for name in metric or [] if name != "perplexity")
    recipe = Recipe.parse(options.check_runs([run], device, decoding).recipe)
    values |= options.without_none(metrics=metric, masks=mask)
    settings = DiagnosisSettings.parse({**values, "decoding": change_decoding(recipe.decoding, decoding)})
    opened = Collection.open(collection)
    opened.require_split(name_or_default(split, recipe.data.test, "--split"))
    (trained,) = options.load_runs([run], device)
    with progress_bars() as progress:
        diagnosis = diagnose_model(trained, opened, settings=settings, command=command_line(), on_progress=progress)
    _report(diagnosis, run, out_file, _print_diagnosis, as_json)


def _measure_grounding(
    run: Path, collection: Path, values: dict[str, Any], out_file: Path | None, device: str, as_json: bool
) -> None:
    from limner.apps.diagnosis import GroundingSettings, measure_grounding
    from limner.data.collection import Collection

    settings, opened = GroundingSettings.parse(values), Collection.open(collection)
    (model,) = options.load_runs([run], device)
    with progress_bars() as progress:
        result = measure_grounding(model, opened, settings=settings, command=command_line(), on_progress=progress)
    _report(result, run, out_file, _print_grounding, as_json)


def _report(
    record: RecordOfModel, run: Path, file: Path | None, print_record: Callable[[RecordOfModel], None], as_json: bool
) -> None:
    """Write a record to a file, by default of the run, and print it as JSON or as tables."""
    saved = save_output(file or record.path_in(results_folder(run)), record.save)
    if as_json:
        print_json({"file": str(saved.path), **json.loads(record.model_dump_json())})
    else:
        print_record(record)
        echo(f"{saved.path} ({record.seconds:.1f} s)")
    saved.require()


def _print_grounding(result: Grounding) -> None:
    everything, *types = result.groups
    title = f"{counted(everything.phrases, 'phrase')} of {counted(everything.images, 'image')} of '{result.split}'"
    rows = [["attention", "mass inside, %", "pointing, %"]]
    for score in everything.scores:
        pairs = ((score.mass, score.mass_p), (score.pointing, score.pointing_p))
        cells = [f"{value:.2f}" + ("" if p is None else f" (p {p:.4f})") for value, p in pairs]
        rows.append([score.attention, *cells])
    print_table(rows, title=title)
    rows = [["type", "phrases", *(score.attention for score in everything.scores)]]
    for group in types:
        cells = [f"{score.mass:.1f} / {score.pointing:.1f}" for score in group.scores]
        rows.append([group.type, f"{group.phrases:,}", *cells])
    echo()
    print_table(rows, title="by entity type: mass inside / pointing, %")
    for reason, count in result.excluded.items():
        echo(f"not measured: {count:,} {reason}")
    echo(f"attention correctness (maximum over the words of a phrase): {everything.correctness:.2f} %")
    echo(result.verdict)


def _print_diagnosis(diagnosis: Diagnosis) -> None:
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
    for line in diagnosis.notes:
        echo(line)
    echo(diagnosis.verdict)


def _print_conditions(title: str, conditions: Sequence[ConditionResult]) -> None:
    from limner.metrics.base import format_value

    rows = [["images", *(score.metric for score in conditions[0].scores), "changed"]]
    for condition in conditions:
        cells = [
            format_value(score.value)
            + ("" if score.p is None else f" ({format_value(score.difference, sign='+')}, p {score.p:.4f})")
            for score in condition.scores
        ]
        changed = f"{condition.changed:.1f} %" if condition is not conditions[0] else ""
        rows.append([condition.name, *cells, changed])
    print_table(rows, title=title)
    echo()


SHOWN_DISTANCES = (1, 2, 3, 5, 8, 10, 15, 20)
"""Distances printed in the table."""


@options.command(MEASURE)
def gradients(
    *,
    model: list[Path] | None = None,
    collection: Path | None = None,
    split: str | None = None,
    sentences: Count = 128,
    probes: Few = 4,
    seed: Seed = 1,
    plot: Path | None = None,
    force: bool = False,
    skip_missing: bool = False,
    device: str = "cpu",
    as_json: bool = False,
) -> None:
    """Measure how the gradient of a recurrent state vanishes or explodes with the distance in tokens.

    The norms are stored in RUN/gradients/SPLIT.json.

    Example: `limner gradients --model runs/lstm --model runs/tanh --plot gradients.png`

    Options:
        model (RUN): Run folder of a recurrent model. Repeatable, to compare models.
        collection (DIR): Collection with items and features; default: the trained one.
        split: Split of the sentences; default: the recipe's validation split.
        sentences: Maximum number of sentences.
        probes: Random vectors per state tensor; at least its size gives exact norms.
        seed: Random seed of the sentences and vectors.
        plot (FILE): Plot to write (.png or .svg); default: a .png beside the JSON file.
    """
    runs = options.require_models(model)
    if plot is not None:
        claim_file(plot, "--plot", force=force)
    for run in runs:
        require_writable(results_folder(run) / "gradients", str(run))
    from limner.data.collection import Collection
    from limner.evaluation.gradients import GradientSettings, measure_gradients
    from limner.plots.figures import gradient_norms, require_plot_suffix, save_plot

    if plot is not None:
        require_plot_suffix(plot)
    values = options.without_none(split=split, sentences=sentences, probes=probes, seed=seed, leave_out=skip_missing)
    settings = GradientSettings.parse(values)
    measured: dict[str, GradientNorms] = {}
    for run in runs:
        (trained,) = options.load_runs([run], device)
        opened = Collection.open(collection or Path(trained.config.provenance["collection"]))
        with progress_bars() as progress:
            norms = measure_gradients(trained, opened, settings=settings, command=command_line(), on_progress=progress)
        norms.save_in(results_folder(run))
        measured[str(run)] = norms
    if len(runs) == 1:  # all tensors of one model
        curves = {norms.label(curve): curve.norms for curve in norms.curves}
    else:  # the whole states of several
        curves = {norms.label(norms.curves[0], run): norms.curves[0].norms for run, norms in measured.items()}
    figure, plot = gradient_norms(curves), plot or results_folder(runs[0]) / "gradients" / "gradients.png"
    saved = save_output(plot, lambda file: save_plot(figure, file))
    if as_json:
        models = {run: json.loads(norms.model_dump_json()) for run, norms in measured.items()}
        print_json({"plot": str(saved.path), "models": models})
    else:
        _print_gradients(measured)
        echo(str(saved.path))
    saved.require()


def _print_gradients(measured: Mapping[str, GradientNorms]) -> None:
    """Print the norms at some distances and the factor per token, one row for each curve."""
    longest = max(len(norms.pairs) for norms in measured.values())
    shown = [distance for distance in SHOWN_DISTANCES if distance < longest]
    rows = [["model", "tensor", "units", *map(str, shown), "factor", "fitted to"]]
    for run, norms in measured.items():
        for curve in norms.curves:
            values = [f"{curve.norms[d]:.2g}" if d < len(curve.norms) else "" for d in shown]
            decay = norms.decays.get(curve.name)
            fitted = ("", "") if decay is None else (f"{decay.factor:.3f}", decay.distances)
            rows.append([Path(run).name, curve.name, str(curve.size), *values, *fitted])
    print_table(rows, left=3)
    sentences = ", ".join(f"{norms.sentences:,} of '{norms.split}'" for norms in measured.values())
    echo(f"root mean square singular value of d s_t / d s_k by the distance t - k; sentences: {sentences}")

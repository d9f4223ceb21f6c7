"""Options shared by several commands: each is declared once, with one name and one help text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from limner.bounds import (
    BatchSize,
    BeamSize,
    Length,
    LengthOrNone,
    LengthPenalty,
    PositiveShare,
    Probability,
    Seed,
    Temperature,
    VocabularySize,
    bounds_of,
)
from limner.errors import SettingsError

INPUT, DECODING, SAMPLING, TAGS, OUTPUT, EXPLANATIONS = (
    "Input",
    "Decoding",
    "Sampling",
    "Tags and confidence",
    "Output",
    "Explanations",
)
"""Headings of groups of options in the help of the commands that have many."""


class Number:
    """Parser of a numeric option."""

    def __init__(self, kind: Any) -> None:  # noqa: ANN401  (a type with metadata has no type)
        """Create the parser of one of the types of `limner.bounds`."""
        self.bounds = bounds_of(kind)
        self.__name__ = "number"

    def __call__(self, value: Any) -> int | float:  # noqa: ANN401  (a text, or the default value)
        """Return the number; typer adds the name of the option to an error."""
        try:
            return self.bounds.parse(value)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None


ModelsOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--model",
        metavar="RUN",
        help="Trained model: the run folder written by 'limner train'. Repeat the option for an ensemble.",
    ),
]
ModelOption = Annotated[
    list[Path] | None,
    typer.Option("--model", metavar="RUN", help="Trained model: the run folder written by 'limner train'."),
]
CaptionersOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--model",
        metavar="RUN",
        help="Trained model: the run folder written by 'limner train'; default: the built-in captioner. Repeat the "
        "option for an ensemble.",
    ),
]
CaptionerOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--model",
        metavar="RUN",
        help="Trained model: the run folder written by 'limner train'; default: the built-in captioner.",
    ),
]
LangOption = Annotated[
    str | None,
    typer.Option("--lang", help="Language of the built-in captioner: en, de or zh; default: en."),
]
IndexOption = Annotated[
    Path | None,
    typer.Option(
        "--index",
        metavar="DIR",
        help="Folder of the index, as for images on a read-only disk; default: .limner in the folder of images, or "
        "indexes/RUN in the collection.",
    ),
]
CollectionOption = Annotated[
    Path, typer.Option("--collection", metavar="DIR", help="Collection with items and features.")
]
SearchedCollectionOption = Annotated[
    Path | None, typer.Option("--collection", metavar="DIR", help="Collection to search, with items and features.")
]
BackboneOption = Annotated[
    str | None,
    typer.Option(
        "--backbone",
        help="Hub id or folder of the backbone that computed the training features; default: the recorded one.",
    ),
]
DeviceOption = Annotated[str, typer.Option("--device", help="Device to compute on: cpu, cuda or cuda:N.")]
RayOption = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Compute on a Ray cluster: local starts one on this machine, auto finds the one that it belongs to, or "
        "HOST:PORT. The machines share the folders that are named. Needs the extra 'scale'.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
EvaluatedSplitOption = Annotated[
    str | None, typer.Option("--split", help="Split to evaluate; default: the recipe's test split.")
]
SearchedSplitOption = Annotated[str | None, typer.Option("--split", help="Split to search; default: all splits.")]
MetricsOption = Annotated[
    list[str] | None, typer.Option("--metric", help="Metric to compute; default: all available. Repeatable.")
]
SkipMissingOption = Annotated[
    bool, typer.Option("--skip-missing", help="Skip items whose image has no features, and count them.")
]
ChangesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Recipe settings to change.")
]

BeamSizeOption = Annotated[
    int | None,
    typer.Option(
        "--beam-size",
        help="Hypotheses kept in each step; 1 is greedy search; default: the recipe's.",
        parser=Number(BeamSize),
        rich_help_panel=DECODING,
    ),
]
NBestOption = Annotated[
    int | None,
    typer.Option(
        "--n-best",
        help="Hypotheses to print for each input; default: the recipe's.",
        parser=Number(BeamSize),
        rich_help_panel=DECODING,
    ),
]
LengthPenaltyOption = Annotated[
    float | None,
    typer.Option(
        "--length-penalty",
        help="Exponent of the length by which log-probabilities are divided; 0 ranks by log-probability, larger "
        "values favour longer sentences; default: the recipe's.",
        parser=Number(LengthPenalty),
        rich_help_panel=DECODING,
    ),
]
MinLengthOption = Annotated[
    int | None,
    typer.Option(
        "--min-length",
        help="Minimum length in tokens; default: the recipe's.",
        parser=Number(LengthOrNone),
        rich_help_panel=DECODING,
    ),
]
MaxLengthOption = Annotated[
    int | None,
    typer.Option(
        "--max-length",
        help="Maximum length in tokens; default: the recipe's.",
        parser=Number(Length),
        rich_help_panel=DECODING,
    ),
]
MustIncludeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--must-include",
        metavar="WORDS",
        help="Word or phrase that every sentence includes; 'dog|puppy' is satisfied by either. Repeatable.",
        rich_help_panel=DECODING,
    ),
]
TagsOption = Annotated[
    bool,
    typer.Option(
        "--tags",
        help="Print nouns for what the classifier of the built-in backbone sees in each image, with probabilities.",
        rich_help_panel=TAGS,
    ),
]
NoTagsInCaptionsOption = Annotated[
    bool,
    typer.Option(
        "--no-tags-in-captions",
        help="Do not make captions name what the classifier is sure of; only the built-in captioner and other "
        "calibrated models do.",
        rich_help_panel=TAGS,
    ),
]
MinCaptionConfidenceOption = Annotated[
    float | None,
    typer.Option(
        "--min-confidence",
        help="Print 'not sure' in place of captions whose confidence is lower, 0-1; default: that of the model's "
        "calibration, or none.",
        parser=Number(Probability),
        rich_help_panel=TAGS,
    ),
]
SampleOption = Annotated[
    bool,
    typer.Option(
        "--sample", help="Sample tokens from the model's distribution instead of beam search.", rich_help_panel=SAMPLING
    ),
]
TemperatureOption = Annotated[
    float | None,
    typer.Option(
        "--temperature",
        help="With --sample: divide the logits by this value; below 1 favours probable tokens; default: 1.",
        parser=Number(Temperature),
        rich_help_panel=SAMPLING,
    ),
]
TopKOption = Annotated[
    int | None,
    typer.Option(
        "--top-k",
        help="With --sample: sample from the k most probable tokens; default: all.",
        parser=Number(VocabularySize),
        rich_help_panel=SAMPLING,
    ),
]
TopPOption = Annotated[
    float | None,
    typer.Option(
        "--top-p",
        help="With --sample: sample from the smallest set of tokens with this total probability; default: 1.",
        parser=Number(PositiveShare),
        rich_help_panel=SAMPLING,
    ),
]
SamplingSeedOption = Annotated[
    int | None,
    typer.Option(
        "--seed", help="With --sample: random seed; default: 0.", parser=Number(Seed), rich_help_panel=SAMPLING
    ),
]

ExplainBeamOption = Annotated[
    Path | None,
    typer.Option(
        "--explain-beam",
        metavar="FILE",
        help="Write every hypothesis of the beam as a tree: .png, .svg, .json or .txt; - prints it. One input only.",
        rich_help_panel=EXPLANATIONS,
    ),
]

ForceOption = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Replace files that Limner did not write as this kind of file, and write inside runs and collections.",
    ),
]

MIN_CONFIDENCE = 0.05
"""Default of `--min-confidence`."""
MinConfidenceOption = Annotated[
    float | None,
    typer.Option(
        "--min-confidence",
        help=f"Leave out regions whose confidence is lower, 0-1; default: {MIN_CONFIDENCE}.",
        parser=Number(Probability),
    ),
]

CaptionBatchSizeOption = Annotated[
    int,
    typer.Option(
        "--batch-size", help="Images captioned together; captions do not depend on it.", parser=Number(BatchSize)
    ),
]
TranslationBatchSizeOption = Annotated[
    int,
    typer.Option(
        "--batch-size", help="Sentences decoded together; results do not depend on it.", parser=Number(BatchSize)
    ),
]
ExtractionBatchSizeOption = Annotated[
    int,
    typer.Option(
        "--batch-size", help="Images encoded together; results do not depend on it.", parser=Number(BatchSize)
    ),
]

AttentionOption = Annotated[
    Path | None,
    typer.Option(
        "--attention",
        metavar="DIR",
        help="Write plots of the attention for each word, and index.html.",
        rich_help_panel=EXPLANATIONS,
    ),
]

ImageControlName = Literal["right", "shuffled", "mean", "zero"]
ImageControlOption = Annotated[
    ImageControlName,
    typer.Option(
        "--image-control",
        help="Features given to the model: those of the right image, or as a control those of another image "
        "(shuffled), the training mean or zeros.",
    ),
]


def given(**values: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the options that are not None; the others keep the defaults of the settings."""
    return {key: value for key, value in values.items() if value is not None}


def refuse(options: Mapping[str, object], reason: str) -> None:
    """Refuse options that would have no effect, so that none is ignored in silence.

    Args:
        options: values by the name of the option.
        reason: why they have no effect, and what to do.

    Raises:
        SettingsError: one of them was given.
    """
    if names := names_given(options):
        raise SettingsError(f"{', '.join(names)}: {reason}")


def names_given(options: Mapping[str, object]) -> list[str]:
    """Return the names of the options that were given: those with values other than None, False and empty ones."""
    return [name for name, value in options.items() if value or (value == 0 and value is not False)]


def require_models(runs: list[Path] | None) -> list[Path]:
    """Return the run folders of --model.

    Raises:
        SettingsError: none was given.
    """
    if not runs:
        raise SettingsError(
            "no model: expected --model RUN, a run folder written by 'limner train'; 'limner demo' trains one to try"
        )
    known: set[Path] = set()
    for run in runs:
        if run.resolve() in known:
            raise SettingsError(f"--model {run}: given twice, which has no effect on an ensemble; give each run once")
        known.add(run.resolve())
    return runs


def models_or_pretrained(runs: list[Path] | None, lang: str | None) -> list[Path]:
    """Return the run folders of --model, by default that of the built-in captioner.

    Raises:
        SettingsError: a folder is given twice, --lang is given beside --model, or is not a language of the built-in
            captioner.
    """
    from limner.runs.pretrained import choose_runs

    return [Path(run) for run in choose_runs(require_models(runs) if runs else [], lang)]


def model_or_pretrained(runs: list[Path] | None, lang: str | None, command: str) -> Path:
    """Return the run folder of --model for a command without ensembles, by default that of the built-in captioner.

    Raises:
        SettingsError: more than one was given, or as for `models_or_pretrained`.
    """
    return require_one_model(models_or_pretrained(runs, lang), command)


def require_one_model(runs: list[Path] | None, command: str) -> Path:
    """Return the run folder of --model, for a command without ensembles.

    Raises:
        SettingsError: none or more than one was given.
    """
    run, *others = require_models(runs)
    if others:
        raise SettingsError(f"limner {command}: expected one --model, got {1 + len(others)}; it has no ensembles")
    return run

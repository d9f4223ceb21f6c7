"""Options shared by several commands, each with one name and one help text."""

from __future__ import annotations

import functools
import inspect
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import typer
from typer.models import CommandInfo, ParameterInfo

from limner.apps.cli.app import COMMANDS
from limner.apps.cli.terminal import activity
from limner.bounds import Bounds
from limner.decoding.settings import DecodingSettings, SampleSettings, change_decoding
from limner.errors import SettingsError
from limner.hub.settings import HubSettings
from limner.runs.pretrained import local_folder, model_type
from limner.settings import Settings
from limner.storage.outputs import claim_file

if TYPE_CHECKING:
    from limner.inference.generate import Generate
    from limner.runs.trained_model import ModelConfig, TrainedModel

_RUN = "Trained model: the run folder written by 'limner train'"
_HUB = "; or a model of the hub, hub:ORG/NAME, or its folder"
_BUILT_IN, _ENSEMBLE = "; default: the built-in captioner", ". Repeat the option for an ensemble"
ModelOption = Annotated[list[Path] | None, typer.Option("--model", metavar="RUN", help=f"{_RUN}.")]
ModelsOption = Annotated[list[Path] | None, typer.Option("--model", metavar="RUN", help=f"{_RUN}{_ENSEMBLE}.")]
CaptionerOption = Annotated[list[Path] | None, typer.Option("--model", metavar="RUN", help=f"{_RUN}{_HUB}{_BUILT_IN}.")]
CaptionersOption = Annotated[
    list[Path] | None, typer.Option("--model", metavar="RUN", help=f"{_RUN}{_HUB}{_BUILT_IN}{_ENSEMBLE}.")
]
TranslatorsOption = Annotated[
    list[Path] | None,
    typer.Option("--model", metavar="RUN", help=f"{_RUN}{_HUB}; default: the built-in translator{_ENSEMBLE}."),
]
Decoding = Annotated[
    dict[str, Any], DecodingSettings, "beam_size", "n_best", "length_penalty", "min_length", "max_length"
]
"""Decoding settings on the command line."""
Sampling = Annotated[dict[str, Any], SampleSettings, "temperature", "top_k", "top_p", "seed"]
"""Settings of sampling on the command line."""
HubOptions = Annotated[dict[str, Any], HubSettings, "prompt", "keep_preamble", "dtype"]
"""Settings of models of the hub on the command line."""
HUB_ONLY = "has an effect only on a model of the hub, which {} is not; leave it out"


def without_none(**values: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the options that are not None; the others keep the defaults of the settings."""
    return {key: value for key, value in values.items() if value is not None}


def refuse(options: Mapping[str, object], reason: str) -> None:
    """Refuse options that would have no effect.

    Options are named by their name or their parameter; options with the value None, False or empty are not set. The
    reason says why they have no effect, and what to do.
    """
    refused = [name for name, value in options.items() if value or (value == 0 and value is not False)]
    if refused:
        names = (f"--{name.replace('_', '-')}" if name.isidentifier() and name.islower() else name for name in refused)
        raise SettingsError(f"{', '.join(names)}: {reason}")


def claim_image(file: Path, option: str, force: bool) -> Path:
    """Check that an image may be written to the file of an option; SettingsError if not."""
    from limner.apps.report.images import require_sheet_suffix

    require_sheet_suffix(file)
    return claim_file(file, option, force=force)


def require_models(runs: list[Path] | None) -> list[Path]:
    """Return the folders of --model, runs or models of the hub; SettingsError for no model, or the same model twice."""
    if not runs:
        raise SettingsError(
            "no model: expected --model RUN, a run folder written by 'limner train'; 'limner demo' trains one to try"
        )
    places = [run.resolve() for run in runs]
    if repeated := [run for number, run in enumerate(runs) if places[number] in places[:number]]:
        raise SettingsError(
            f"--model {repeated[0]}: given twice, which has no effect on an ensemble; give each run once"
        )
    return [Path(local_folder(run)) for run in runs]


def models_or_pretrained(runs: list[Path] | None, lang: str | None, hub: dict[str, Any] | None = None) -> list[Path]:
    """Return the run folders of --model, or else the folder of the built-in captioner of a language.

    The settings `hub` are refused for a run; for a model of the hub, the language is added to them.
    """
    from limner.runs.pretrained import choose_runs

    folders = require_models(runs) if runs else []
    if hub is not None and folders and model_type(folders[0]) is not None:
        hub |= without_none(lang=lang)
        return folders
    chosen = [Path(run) for run in choose_runs(folders, lang)]
    refuse(hub or {}, HUB_ONLY.format(chosen[0]))
    return chosen


def require_one_model(runs: list[Path] | None, command: str) -> Path:
    """Return the run folder of --model for a command without ensembles; SettingsError for no run or several."""
    run, *more = require_models(runs)
    if more:
        raise SettingsError(f"limner {command}: expected one --model, got {1 + len(more)}; it has no ensembles")
    return run


def check_runs(
    runs: Sequence[Path], device: str, decoding: Mapping[str, Any] | None = None, backbone: str | None = None
) -> ModelConfig:
    """Check the run folders, the device and the decoding options of a command; weights are not read.

    The decoding options change the settings of the first run, whose configuration is returned.
    """
    from limner.runs.records import require_run_directory

    for run in runs:  # before torch is imported
        require_run_directory(run)
    from limner.process import find_device
    from limner.runs.trained_model import read_config

    find_device(device)
    configs = [read_config(run) for run in runs]
    changed = change_decoding(configs[0][1].decoding, decoding or {})
    if changed.beam_size == 1 and "beam_size" not in (decoding or {}):  # series of commands may vary the beam size
        reason = "has no effect on one hypothesis, which is ranked with no other; add --beam-size"
        refuse({"length_penalty": (decoding or {}).get("length_penalty")}, reason)
    if not configs[0][0].features:
        refuse({"backbone": backbone}, f"{runs[0]} was trained without features of a backbone; leave it out")
    return configs[0][0]


def load_runs(runs: Sequence[Path], device: str) -> list[TrainedModel]:
    """Load the models of run folders."""
    from limner.runs.trained_model import load_trained_model

    with activity("loading the model"):
        return [load_trained_model(run, device) for run in runs]


def generator(
    ray: str | None, runs: Sequence[Path], collection: Path, journal: Path, device: str
) -> AbstractContextManager[Generate]:
    """Return the function that decodes inputs, in this process or on a Ray cluster, as a context."""
    if ray is None:
        from limner.inference.generate import generate

        return nullcontext(generate)
    from limner.apps.distributed.sentences import generator_on

    return generator_on(ray, runs, collection, journal, device)


MANIFEST = "generation.json"
"""File of an exported model; see `limner.runtime.manifest`, which is not imported for runs."""


def uses_graphs(models: Sequence[Path], options: Mapping[str, object], device: str) -> bool:
    """Whether an exported model, without torch, or a model of the hub generates; SettingsError for an ensemble of them.

    The built-in captioner is both, and is loaded as a run for `options`, by name, that an exported model has not.
    """
    kind = "an exported model"
    if (models[0] / MANIFEST).is_file():
        options = {**options, "--device": device if device != "cpu" else None}
        if (models[0] / "config.json").is_file():
            return len(models) == 1 and not any(options.values())
    elif any(model_type(model) is not None for model in models):
        kind, options = "a model of the hub", {**options, "ray": None}  # which units of Ray load as well
    else:
        return False
    if len(models) > 1:
        raise SettingsError(f"--model {models[0]}: {kind} is no part of an ensemble; name runs, or it alone")
    run = f"needs a run, and {models[0]} is {kind}; name the run, or leave the option out"
    refuse(options, run)
    return True


_SECTION = re.compile(r"^(\w[\w ]*):\n((?: {4}.*\n?)+)", re.MULTILINE)
_ENTRY = re.compile(r"^ {4}(\w+)(?: \((.+?)\))?: (.+(?:\n {8}.+)*)", re.MULTILINE)
_Command = TypeVar("_Command", bound=Callable[..., None])


class OptionText(NamedTuple):
    """Help text of an argument or an option."""

    spec: str  # name of the option where the parameter has another, name of its value, or both: `--out FILE`
    text: str
    panel: str | None  # heading of its group


def option_texts(docstring: str | None) -> tuple[str, dict[str, OptionText]]:
    """Return a docstring without its sections, and the help texts of the sections by parameter."""
    text = inspect.cleandoc(docstring or "")
    texts = {
        name: OptionText(spec, " ".join(words.split()), None if title == "Options" else title)
        for title, body in _SECTION.findall(text)
        for name, spec, words in _ENTRY.findall(body)
    }
    return _SECTION.sub("", text).strip(), texts


SHARED = option_texts(
    """Arguments and options that several commands have, by the name of the parameter.

    Options:
        changes ([KEY=VALUE]...): Recipe settings to change.
        lang: Language of the built-in captioner: en, de or zh, or of the default prompt of a model of the hub; default:
            en.
        index (DIR): Folder of the index, as for images on a read-only disk; default: .limner in the folder of images,
            or indexes/RUN in the collection.
        collection (DIR): Collection with items and features.
        backbone: Hub id or folder of the backbone that computed the training features; default: the recorded one.
        device: Device to compute on: cpu, cuda or cuda:N.
        ray (ADDRESS): Compute on a Ray cluster: local starts a cluster on this machine, auto finds the cluster of
            this machine, or HOST:PORT. The machines share the folders that are named. Needs the extra 'scale'.
        as_json (--json): Print JSON instead of text.
        skip_missing: Skip items whose image has no features, and count them.
        image_control: Features given to the model: the features of the right image, or as a control the features of
            another image (shuffled), the training mean or zeros.
        force: Replace files that exist, and write inside runs and collections.
        batch_size: Inputs computed together; results do not depend on it.
        recipe: Name of a recipe, such as mao2015/flickr8k, or a .yaml file.

    Input:
        recursive: Find files in the folders of a folder as well.

    Decoding:
        must_include (WORDS): Word or phrase that every sentence includes; 'dog|puppy' is satisfied by either.
            Repeatable.
        beam_size: Hypotheses kept in each step; 1 is greedy search; default: the recipe's.
        n_best: Hypotheses to print for each input; default: the recipe's.
        length_penalty: Exponent of the length by which log-probabilities are divided; 0 ranks by log-probability,
            larger values favour longer sentences; default: the recipe's.
        min_length: Minimum length in tokens; default: the recipe's.
        max_length: Maximum length in tokens; default: the recipe's.

    Sampling:
        temperature: With --sample: divide the logits by this value; below 1 favours probable tokens; default: 1.
        top_k: With --sample: sample from the k most probable tokens; default: all.
        top_p: With --sample: sample from the smallest set of tokens with this total probability; default: 1.
        seed: With --sample: random seed; default: 0.

    Models of the hub:
        prompt: Request to a model that reads one; default: a request of a caption in --lang.
        keep_preamble: Keep a beginning such as 'The image shows', which is removed from captions.
        dtype: Data type of the weights: float32, bfloat16 or float16; 16 bits take half the memory; default: float32.

    Explanations:
        attention (DIR): Write plots of the attention for each word, and index.html.
        explain_beam (FILE): Write every hypothesis of the beam as a tree: .png, .svg, .json or .txt; - prints it. One
            input only.
    """
)[1]


def command(panel: str, name: str | None = None) -> Callable[[_Command], _Command]:
    """Make a function a command: its positional parameters are arguments, the others options.

    The texts of the help are in the docstring of the function, in sections in the style of Google with entries such as
    `out_file (--out FILE): File to write.`; the title of a section other than 'Options' is the heading of its group.
    Parameters that several commands have are described in `SHARED`. Numbers with a type of `limner.bounds` are parsed
    by their bounds. A parameter of type `Annotated[dict[str, Any], SETTINGS, NAME, ...]` stands for options with the
    names and types of these settings, by default of all that the docstring of the function describes: the function
    receives the values that were given as a mapping.
    """

    def register(function: _Command) -> _Command:
        summary, described = option_texts(function.__doc__)
        callback = _CommandFunction(function, described)
        COMMANDS[name or function.__name__] = CommandInfo(
            name or function.__name__, callback=callback, help=summary, rich_help_panel=panel
        )
        return function

    return register


class _CommandFunction:
    """A function as typer calls it; its parameters are computed only for the command that runs, to save time."""

    def __init__(self, function: Callable[..., None], described: Mapping[str, OptionText]) -> None:
        self.__name__, self.__doc__ = function.__name__, function.__doc__
        self.__annotations__ = {}
        self._function, self._described, self._groups = function, described, dict[str, list[str]]()

    @functools.cached_property
    def __signature__(self) -> inspect.Signature:
        texts, parameters = {**SHARED, **self._described}, list[inspect.Parameter]()
        hints = get_type_hints(self._function, include_extras=True)
        for parameter in inspect.signature(self._function).parameters.values():
            hint = hints[parameter.name]
            first, *names = getattr(hint, "__metadata__", (None,))
            if isinstance(first, ParameterInfo):
                parameters.append(parameter.replace(annotation=hint))
            elif isinstance(first, type) and issubclass(first, Settings):
                names = names or [name for name in self._described if name in first.model_fields]
                self._groups[parameter.name], fields = names, get_type_hints(first, include_extras=True)
                options = {field: parameter.replace(name=field, default=None) for field in names}
                parameters += [_with_text(option, fields[field], texts[field]) for field, option in options.items()]
            else:
                parameters.append(_with_text(parameter, hint, texts[parameter.name]))
        return inspect.Signature(parameters)

    def __call__(self, **values: Any) -> None:  # noqa: ANN401
        for group, names in self._groups.items():
            values[group] = without_none(**{name: values.pop(name) for name in names})
        self._function(**values)


def _parse_path(text: str | Path) -> Path:
    """Return a path; ValueError for an empty text, as of a shell variable without a value: Path makes it a folder."""
    if not str(text):
        raise ValueError("expected a path, got an empty text; write . for the current folder")
    return Path(text)


def _with_text(parameter: inspect.Parameter, hint: Any, text: OptionText) -> inspect.Parameter:  # noqa: ANN401
    """Return a parameter that typer shows with a text, and parses by the bounds of its type.

    Types of typer have no bounds; a tuple of settings is an option that can be repeated.
    """
    is_union = get_origin(hint) in (Union, UnionType)
    kinds: list[Any] = [
        list[str] if kind == tuple[str, ...] else kind for kind in (get_args(hint) if is_union else (hint,))
    ]
    parser: Callable[[Any], Any] | None = _parse_path if {Path, list[Path]} & {*kinds} else None
    for place, kind in enumerate(kinds):
        for bounds in getattr(kind, "__metadata__", ()):
            if isinstance(bounds, Bounds):
                kinds[place], parser = kind.__origin__, bounds.parse
    name, _, metavar = text.spec.partition(" ") if text.spec.startswith("--") else ("", "", text.spec)
    shown: dict[str, Any] = {"help": text.text, "metavar": metavar or None, "rich_help_panel": text.panel}
    option = name or f"--{parameter.name.strip('_').replace('_', '-')}"
    is_option = parameter.kind is inspect.Parameter.KEYWORD_ONLY
    info = typer.Option(option, parser=parser, **shown) if is_option else typer.Argument(parser=parser, **shown)
    return parameter.replace(annotation=Annotated[functools.reduce(operator.or_, kinds), info])

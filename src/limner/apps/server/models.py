"""The served models: names, tasks, languages, and the facts that other programs list."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from limner.apps.server.errors import InvalidRequestError, NotFoundError, NotSupportedError
from limner.apps.server.settings import ServerSettings
from limner.errors import SettingsError, did_you_mean, missing_extra
from limner.features.encoders.base import Backbone
from limner.hub.settings import HubSettings
from limner.inference.image_searcher import JOINT, JointSpace
from limner.inference.load import load
from limner.runs.pretrained import (
    DEFAULT_LANG,
    local_folder,
    model_name,
    model_type,
    pretrained_languages,
    pretrained_pairs,
    pretrained_run,
    pretrained_translator,
)
from limner.runtime.generators import ExportedModel
from limner.storage.json_text import to_json

if TYPE_CHECKING:
    from limner.hub.generators import HubCaptioner, HubTranslator
    from limner.inference.captioner import Captioner
    from limner.inference.translator import Translator
    from limner.runs.trained_model import TrainedModel
    from limner.runtime.generators import ExportedCaptioner, ExportedTranslator

Task = Literal["describe", "translate"]
ServedGenerator: TypeAlias = (
    "Captioner | Translator | ExportedCaptioner | ExportedTranslator | HubCaptioner | HubTranslator"
)
DEFAULT_TAG = "latest"
"""Tag of the first language of a model."""
CONFIG, WEIGHTS, GRAPH = "config.json", "model.safetensors", "encoder.onnx"
"""Files of a run, and of an exported model."""


def trained_models(generator: ServedGenerator) -> Sequence[TrainedModel]:
    """Return the models of torch behind a generator, which explain and score.

    MissingExtraError without torch, NotSupportedError for a model of the hub, or one that was exported without its run.
    """
    if isinstance(generator, ExportedModel):
        return _load_trained(generator.folder)
    if not generator.models:
        raise NotSupportedError("this model is of the hub, of which nothing is explained or scored; serve a run")
    return generator.models


@cache
def _load_trained(run: Path) -> Sequence[TrainedModel]:
    try:
        from limner.runs.trained_model import load_trained_model
    except ModuleNotFoundError as error:
        raise missing_extra(error, "explaining or scoring sentences") from None
    if not (run / CONFIG).is_file():
        raise NotSupportedError(f"model '{run.name}' is exported, which explains and scores nothing; serve its run")
    return [load_trained_model(run)]


_load_joint = cache(JointSpace.load)


class ModelFacts(NamedTuple):
    """Facts about a served model; numbers are sums over its languages and ensembles, without the backbone."""

    architecture: str  # name of the model in its recipe
    parameters: int  # number of parameters
    size: int  # size of the parameters in bytes
    vocabulary: int  # number of tokens of the default language
    max_length: int  # maximum number of tokens of a generated sentence
    digest: str  # SHA-256 of the settings and vocabularies


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A model under its name: a captioner of one or several languages, or a translator."""

    name: str
    task: Task
    by_lang: Mapping[str, ServedGenerator]
    """Generator of each language of the generated sentences; they share one backbone."""
    source: str | None = None  # language that is translated from; None for captioners
    created: int = 0  # time of the training, in seconds since 1970

    @property
    def languages(self) -> tuple[str, ...]:
        """Languages of the generated sentences, the default first."""
        return tuple(self.by_lang)

    @property
    def tags(self) -> tuple[str, ...]:
        """Tags that select a language; an alias with a tag has only this tag."""
        return (DEFAULT_TAG, *(self.languages if len(self.languages) > 1 and ":" not in self.name else ()))

    @property
    def uses_image(self) -> bool:
        """Whether the generated sentences depend on an image."""
        return any(generator.uses_image for generator in self.by_lang.values())

    @property
    def backbone(self) -> Backbone | None:
        """Backbone of the features of images; None for a model without a backbone."""
        return next(iter(self.by_lang.values())).backbone

    def generator(self, lang: str | None = None) -> ServedGenerator:
        """Return the generator of a language, by default the first; InvalidRequestError for a language of none."""
        chosen = self.languages[0] if lang is None else lang
        if chosen not in self.by_lang:
            raise InvalidRequestError(
                f"lang '{chosen}': model '{self.name}' generates {', '.join(self.languages)}; name one of them", "lang"
            )
        return self.by_lang[chosen]

    def trained(self, lang: str | None = None) -> TrainedModel:
        """Return the trained model of a language; see `generator` and `trained_models` for errors."""
        return trained_models(self.generator(lang))[0]

    def joint_folder(self, lang: str | None) -> Path | None:
        """Return the folder of the joint space of sentences in a language and images; None for a model without."""
        generator = self.generator(lang)
        folder = generator.folder / JOINT if isinstance(generator, ExportedModel) else None
        return folder if folder is not None and folder.is_dir() else None

    def joint(self, lang: str | None) -> JointSpace:
        """Return the joint space of a language; NotSupportedError for a model without."""
        if (folder := self.joint_folder(lang)) is None:
            raise NotSupportedError(f"model '{self.name}' has no joint space; the built-in captioner has one", "model")
        return _load_joint(folder)

    @property
    def explains(self) -> bool:
        """Whether attention and log-probabilities of other tokens can be computed, which needs torch and a run."""
        generator = next(iter(self.by_lang.values()))
        if isinstance(generator, ExportedModel):
            return (generator.folder / CONFIG).is_file() and find_spec("torch") is not None
        return bool(generator.models)

    @cached_property
    def facts(self) -> ModelFacts:
        """Facts that other programs list."""
        generators, sizes, digests = list(self.by_lang.values()), [], []
        for generator in generators:
            sizes.append(generator.parameters)
            if isinstance(generator, ExportedModel):
                digests.append([self.created, generator.manifest.files])
            else:
                runs: list[object] = [trained.config.digests() for trained in generator.models]
                digests += [[self.created, facts] for facts in runs or [generator.architecture]]
        first, count = generators[0], sum(sizes)
        kind = first.manifest.model if isinstance(first, ExportedModel) else first.architecture
        digest = hashlib.sha256(to_json(digests, sort_keys=True).encode()).hexdigest()
        return ModelFacts(kind, count, 4 * count, len(first.tokenizer), first.decoding.max_length, digest)


class Models:
    """All served models by name; the first of each task is its default."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self.by_name = {model.name: model for model in models}

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self.by_name.values())

    @property
    def captioners(self) -> list[ServedGenerator]:
        """The captioner of each language of each model."""
        return [generator for model in self if model.task == "describe" for generator in model.by_lang.values()]

    def get(self, name: str | None = None, task: Task | None = None, lang: str | None = None) -> ServedModel:
        """Find a model by its name, or the first model with a task, preferably one that generates a language.

        NotFoundError for another name, NotSupportedError if the model has another task, or no model has the task.
        """
        if name is None:
            able = [model for model in self if task in (None, model.task)]
            if not able:
                raise NotSupportedError(f"no served model can {task}; start limner serve with --model and such a run")
            return next((model for model in able if lang in model.languages), able[0])
        if name not in self.by_name:
            names = [f"{model.name}:{tag}".removesuffix(f":{DEFAULT_TAG}") for model in self for tag in model.tags]
            served = f"served are {', '.join(names)}; name a served model, or start with --alias NAME=MODEL"
            raise NotFoundError(f"model '{name}': not served{did_you_mean(name, names)}; {served}", "model")
        model = self.by_name[name]
        if task not in (None, model.task):
            raise NotSupportedError(f"model '{name}' cannot {task}: it is a model to {model.task}", "model")
        return model

    def find(self, name: str) -> tuple[ServedModel, str | None]:
        """Find a model by NAME, NAME:LANG of one of its languages, or NAME:latest; NotFoundError if there is none."""
        base, _, tag = name.rpartition(":")
        if name not in self.by_name and base in self.by_name:
            served = self.get(base)
            if tag == DEFAULT_TAG:
                return served, None
            if tag in served.languages:
                return served, tag
        return self.get(name), None

    def add_alias(self, alias: str) -> None:
        """Add an alias NAME=MODEL of a model; SettingsError for a name in use, and the errors of `find`."""
        name, _, model = alias.rpartition("=")
        if name in self.by_name:
            raise SettingsError(f"alias '{alias}': a model is named '{name}' already; choose another name")
        served, lang = self.find(model)
        by_lang = served.by_lang if lang is None else {lang: served.by_lang[lang]}
        self.by_name[name] = replace(served, name=name, by_lang=by_lang)

    def translator(self, name: str | None, source: str | None, target: str | None) -> ServedModel:
        """Find a translator by its name, or the first for two languages, see `get`; InvalidRequestError for none."""
        if name is not None:
            served = self.get(name, "translate")
            if source not in (None, served.source):
                raise InvalidRequestError(
                    f"source '{source}': model '{name}' translates from {served.source}", "source"
                )
            return served
        able = [served for served in self if served.task == "translate"] or [self.get(None, "translate")]
        for served in able:
            if source in (None, served.source) and (target is None or target in served.languages):
                return served
        pairs = ", ".join(f"{served.source} to {lang}" for served in able for lang in served.languages)
        raise NotSupportedError(f"no model translates from {source or 'any'} to {target or 'any'}; served are {pairs}")


def load_served_models(settings: ServerSettings) -> Models:
    """Load the models of the settings, or the built-in captioner and translator.

    SettingsError for a run that is not served or settings of the hub without use, RunError for a damaged run,
    NotFoundError for an alias of no model.
    """
    loaded = [_load_run(run, settings) for run in settings.models]
    if not loaded:
        runs = [pretrained_translator(target, source) for source, target in pretrained_pairs()]
        translators = [_load_run(run, settings, encode_images=False) for run in runs]
        named = [replace(translator, name=f"limner-{translator.name}") for translator in translators]
        loaded = [_load_built_in(settings), *named]
    models = Models(loaded)
    if settings.hub != HubSettings() and not any(getattr(captioner, "changed", ()) for captioner in models.captioners):
        raise SettingsError(f"{settings.hub.changed[0]}: expected a captioner of the hub (--model), got none; add one")
    for alias in settings.aliases:
        models.add_alias(alias)
    return models


def _load_built_in(settings: ServerSettings) -> ServedModel:
    """Load the built-in captioner: one model for each language; models with equal features share a backbone."""
    by_lang: dict[str, ServedGenerator] = {}
    backbones: dict[object, Backbone | None] = {}
    for lang in pretrained_languages() or (DEFAULT_LANG,):
        served = _load_run(pretrained_run(lang), settings)
        generator = by_lang[lang] = served.generator()
        if isinstance(generator, ExportedModel):
            fingerprints = tuple(spec.fingerprint for spec in generator.manifest.features)
        else:
            fingerprints = tuple(spec.fingerprint for spec in generator.models[0].config.features)
        generator.backbone = backbones.setdefault(fingerprints, generator.backbone)
    return ServedModel("limner", "describe", by_lang, None, served.created)


def _load_run(place: Path | str, settings: ServerSettings, *, encode_images: bool = True) -> ServedModel:
    run = Path(local_folder(place))
    hub: dict[str, Any] = {}
    if settings.hub != HubSettings() and model_type(run) is not None:
        from limner.hub.families import family_of

        hub = settings.hub.model_dump(exclude_defaults=True) if family_of(run).task == "describe" else {}
    generator = load(run, backbone=settings.backbone, device=settings.device, encode_images=encode_images, **hub)
    if isinstance(generator, ExportedModel):
        source = generator.manifest.source_lang
        if source is None and generator.manifest.features and generator.backbone is None:
            raise SettingsError(f"{run}: exported without a backbone ({generator.manifest.no_backbone}); serve the run")
    else:
        from limner.inference.classifier import Classifier
        from limner.inference.translator import Translator
        from limner.models.phrase_based import PhraseBased

        if isinstance(generator, Classifier):
            raise SettingsError(
                f"{run}: a model of labels; the service serves captioners and translators, name one of them"
            )
        if generator.models and isinstance(generator.models[0].model, PhraseBased):
            raise SettingsError(
                f"{run}: model '{generator.models[0].recipe.model.name}' has no probabilities of tokens, which the "
                "service gives; translate with limner translate, or serve another run"
            )
        source = generator.source.lang if isinstance(generator, Translator) else getattr(generator, "source_lang", None)
    created = int(next(run / name for name in (WEIGHTS, GRAPH, CONFIG) if (run / name).is_file()).stat().st_mtime)
    task: Task = "describe" if source is None else "translate"
    name = model_name(place)
    return ServedModel(name, task, {generator.lang: generator}, source, created)

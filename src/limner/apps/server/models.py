"""The served models: their names, tasks, languages, and what other programs list about them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

from limner.apps.server.errors import InvalidRequestError, NotFoundError, NotSupportedError
from limner.apps.server.settings import ServerSettings
from limner.errors import SettingsError, did_you_mean
from limner.features.encoders.base import Backbone
from limner.inference.captioner import Captioner
from limner.inference.load import load
from limner.inference.new_images import load_backbone_of
from limner.inference.translator import Translator
from limner.models.phrase_based import PhraseBased
from limner.runs.pretrained import (
    DEFAULT_LANG,
    pretrained_languages,
    pretrained_pairs,
    pretrained_run,
    pretrained_translator,
)
from limner.runs.trained_model import TrainedModel, load_trained_model
from limner.storage.json_text import to_json

Task = Literal["describe", "translate"]


class ModelFacts(NamedTuple):
    """Facts about a served model; numbers are of all languages and all models of an ensemble, without the backbone."""

    architecture: str
    """Name of the model in its recipe."""
    parameters: int
    """Number of parameters."""
    size: int
    """Size of the parameters in bytes."""
    vocabulary: int
    """Number of tokens of the default language."""
    max_length: int
    """Maximum number of tokens of a generated sentence."""
    digest: str
    """SHA-256 of the settings and vocabularies."""


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A model under its name: a captioner of one or several languages, or a translator."""

    name: str
    task: Task
    by_lang: Mapping[str, Captioner | Translator]
    """Generator of each language of the generated sentences; they share one backbone."""
    source: str | None = None
    """Language that is translated from; None for captioners."""
    created: int = 0
    """Time of the training, in seconds since 1970."""

    @property
    def languages(self) -> tuple[str, ...]:
        """Languages of the generated sentences, the default first."""
        return tuple(self.by_lang)

    @property
    def uses_image(self) -> bool:
        """Whether the generated sentences depend on an image."""
        return any(generator.uses_image for generator in self.by_lang.values())

    @property
    def backbone(self) -> Backbone | None:
        """Backbone of the features of images; None for a model without."""
        return next(iter(self.by_lang.values())).backbone

    def generator(self, lang: str | None = None) -> Captioner | Translator:
        """Return the captioner or translator of a language, by default of the first.

        Raises:
            InvalidRequestError: the model does not generate the language.
        """
        chosen = self.languages[0] if lang is None else lang
        if chosen not in self.by_lang:
            raise InvalidRequestError(
                f"lang '{chosen}': model '{self.name}' generates {', '.join(self.languages)}; name one of them", "lang"
            )
        return self.by_lang[chosen]

    def trained(self, lang: str | None = None) -> TrainedModel:
        """Return the model of a language as it was trained; see `generator` for the error."""
        return self.generator(lang).models[0]

    @cached_property
    def facts(self) -> ModelFacts:
        """Facts that other programs list."""
        ensemble = [model for generator in self.by_lang.values() for model in generator.models]
        parameters = [weight for trained in ensemble for weight in trained.model.parameters()]
        digests = [[self.created, trained.config.digests()] for trained in ensemble]
        first = ensemble[0]
        return ModelFacts(
            first.recipe.model.name,
            sum(weight.numel() for weight in parameters),
            sum(weight.numel() * weight.element_size() for weight in parameters),
            len(first.tokenizer),
            first.recipe.decoding.max_length,
            hashlib.sha256(to_json(digests, sort_keys=True).encode()).hexdigest(),
        )


class Models:
    """All served models by name; the first of each task is its default."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self.by_name = {model.name: model for model in models}

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self.by_name.values())

    @property
    def captioners(self) -> list[Captioner]:
        """The captioner of each language of each model."""
        generators = (generator for model in self for generator in model.by_lang.values())
        return [generator for generator in generators if isinstance(generator, Captioner)]

    def get(self, name: str | None = None, task: Task | None = None, lang: str | None = None) -> ServedModel:
        """Find a model.

        Args:
            name: its name; None for the first model of the task, and of the language if one has it.
            task: what it must do; None for anything.
            lang: preferred language of the generated sentences, which selects among several models.

        Raises:
            NotFoundError: there is no model of this name.
            NotSupportedError: the model has another task, or no model has the task.
        """
        if name is None:
            able = [model for model in self if task in (None, model.task)]
            if not able:
                raise NotSupportedError(f"no served model can {task}; start limner serve with --model and such a run")
            return next((model for model in able if lang in model.languages), able[0])
        if name not in self.by_name:
            raise NotFoundError(
                f"model '{name}': not served{did_you_mean(name, self.by_name)}; served are {', '.join(self.by_name)}",
                "model",
            )
        model = self.by_name[name]
        if task not in (None, model.task):
            raise NotSupportedError(f"model '{name}' cannot {task}: it is a model to {model.task}", "model")
        return model

    def translator(self, name: str | None, source: str | None, target: str | None) -> ServedModel:
        """Find the translator of a pair of languages; see `get` for errors.

        Args:
            name: its name; None for the first translator of the languages.
            source: language of the text; None for any.
            target: language of the translation; None for any.

        Raises:
            InvalidRequestError: the model of this name translates from another language.
        """
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

    Raises:
        SettingsError: a run is of labels, or has a search of its own, which the service does not serve.
        RunError: a run cannot be loaded.
    """
    if not settings.models:
        translators = [_load_built_in_translator(source, target, settings) for source, target in pretrained_pairs()]
        return Models([_load_built_in(settings), *translators])
    return Models([_load_run(Path(run), settings) for run in settings.models])


def _load_built_in(settings: ServerSettings) -> ServedModel:
    """Load the built-in captioner: one run for each language; runs with equal features share a backbone."""
    by_lang: dict[str, Captioner | Translator] = {}
    backbones: dict[object, Backbone | None] = {}
    for lang in pretrained_languages() or (DEFAULT_LANG,):
        trained = load_trained_model(pretrained_run(lang), settings.device)
        key = tuple(spec.fingerprint for spec in trained.config.features)
        if key not in backbones:
            backbones[key] = load_backbone_of(trained, settings.backbone, settings.device)
        by_lang[lang] = Captioner([trained], backbones[key])
    created = int((pretrained_run() / "model.safetensors").stat().st_mtime)
    return ServedModel("limner", "describe", by_lang, None, created)


def _load_built_in_translator(source: str, target: str, settings: ServerSettings) -> ServedModel:
    run = pretrained_translator(target, source)
    translator = Translator([load_trained_model(run, settings.device)])
    created = int((run / "model.safetensors").stat().st_mtime)
    return ServedModel(f"limner-{source}-{target}", "translate", {target: translator}, source, created)


def _load_run(run: Path, settings: ServerSettings) -> ServedModel:
    generator = load(run, backbone=settings.backbone, device=settings.device)
    if not isinstance(generator, Captioner | Translator):
        raise SettingsError(
            f"{run}: a model of labels; the service serves captioners and translators, name one of them"
        )
    if isinstance(generator.models[0].model, PhraseBased):
        raise SettingsError(
            f"{run}: model '{generator.models[0].recipe.model.name}' has no probabilities of tokens, which the service "
            "gives; translate with limner translate, or serve another run"
        )
    lang = generator.models[0].recipe.data.lang
    source = generator.source.lang if isinstance(generator, Translator) else None
    created = int((run / "model.safetensors").stat().st_mtime)
    task: Task = "describe" if source is None else "translate"
    return ServedModel(run.resolve().name, task, {lang: generator}, source, created)

"""A recipe: everything a training needs besides the data, read from YAML, one file per published row."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from limner.decoding.settings import DecodingSettings
from limner.errors import SettingsError
from limner.models import ModelSettings
from limner.runs.training_settings import TrainingSettings
from limner.settings import Settings, override, read_yaml
from limner.text.tokenizer import TextSettings

SUFFIXES = (".yaml", ".yml")


class DataSettings(Settings):
    """Which part of a collection is read."""

    lang: str = "en"
    """Language of the sentences to learn; of a translation, the language it is in."""
    source_lang: str | None = None
    """Language to translate from; none for a model that translates nothing."""
    synthetic: float = Field(default=0.0, ge=0, lt=1)
    """Share of the pairs of an epoch whose source sentence a model wrote ('limner translate --write'), drawn anew for
    each epoch; 0 leaves all of these out."""
    joint_vocabulary: bool = False
    """Whether both languages of a translation share one vocabulary."""
    train: str = "train"
    """Split that is learned from, and the only one the vocabulary sees."""
    val: str = "val"
    """Split that decides when to stop and which weights are kept."""
    test: str = "test"
    """Split that is evaluated unless another is named."""
    max_tokens: int | None = Field(default=80, ge=1)
    """Maximum number of tokens of a sentence in training and in the perplexity of the validation split; longer
    sentences are excluded. None for no limit."""


class FeatureSettings(Settings):
    """What the model sees of a picture."""

    tables: tuple[str, ...] = ()
    """Names of the feature tables, one for each form of picture; none for a model without pictures."""
    missing: Literal["refuse", "leave_out"] = "refuse"
    """What is done about a picture that has no features, because it could not be read, say."""
    cache_mib: int = Field(default=2048, ge=0)
    """Feature tables of up to this size are held in memory; larger ones are read from disk batch by batch."""


class EvaluationSettings(Settings):
    """What an evaluation measures besides described pictures, perplexity and recall: Kiros et al. (2014), section 7.1.

    The paper's figures take skip_words 5, samples 10 and shortlist 100.
    """

    skip_words: int = Field(default=0, ge=0)
    """C: perplexity counts from word C + 1 on, and leaves out sentences of fewer than C + 3 words; 0 counts all."""
    samples: int = Field(default=0, ge=0)
    """How many times each sentence of the split is sampled for BLEU; 0 leaves that out."""
    prefix_words: int = Field(default=0, ge=0)
    """First words of the reference that a sample begins with; they are not scored, only what follows them is."""
    shortlist: int | None = Field(default=None, ge=1)
    """k_r: sentences are searched among those of this many pictures, the nearest; none leaves that search out."""


class Published(Settings):
    """A published row that this recipe stands beside."""

    row: str
    values: dict[str, float]
    """By the names of our scores and on their scale (BLEU and recall 0-100)."""


class Recipe(Settings):
    """Everything a training needs besides the data."""

    description: str = ""
    """One line for people."""
    data: DataSettings = DataSettings()
    text: TextSettings = TextSettings()
    source_text: TextSettings | None = None
    """How source sentences become words; what it leaves out is as in `text`, but for the language."""
    features: FeatureSettings = FeatureSettings()
    model: ModelSettings
    training: TrainingSettings = TrainingSettings()
    decoding: DecodingSettings = DecodingSettings()
    """How sentences are written when the command names nothing else, and while validating."""
    evaluation: EvaluationSettings = EvaluationSettings()
    published: Published | None = None

    @model_validator(mode="before")
    @classmethod
    def _say_the_language_once(cls, values: Any) -> Any:  # noqa: ANN401  (whatever YAML holds)
        if not isinstance(values, dict):
            return values
        data, text, source = values.get("data"), values.get("text", {}), values.get("source_text") or {}
        if not isinstance(data, dict) or not isinstance(text, dict) or not isinstance(source, dict):
            return values
        if "lang" in data:
            text = {"lang": data["lang"], **text}
            values = {**values, "text": text}
        if data.get("source_lang") is not None:
            values = {**values, "source_text": {**text, "lang": data["source_lang"], **source}}
        return values

    @model_validator(mode="after")
    def _one_language(self) -> Self:
        if self.text.lang != self.data.lang:
            raise ValueError(
                f"text.lang is '{self.text.lang}' and data.lang is '{self.data.lang}'; sentences are cut by the rules "
                "of their own language: leave text.lang out"
            )
        if self.source_text is not None and self.source_text.lang != self.data.source_lang:
            raise ValueError(
                f"source_text.lang is '{self.source_text.lang}' and data.source_lang is '{self.data.source_lang}': "
                "leave source_text.lang out"
            )
        return self

    @model_validator(mode="after")
    def _a_language_to_translate_from(self) -> Self:
        translates = getattr(self.model, "translates", False)
        if translates and self.data.source_lang is None:
            raise ValueError(f"model '{self.model.name}' translates: say from which language by data.source_lang")
        if not translates and self.data.source_lang is not None:
            raise ValueError(
                f"data.source_lang is '{self.data.source_lang}', and model '{self.model.name}' translates nothing: "
                "leave it out"
            )
        return self


def load_recipe(name: str, assignments: list[str]) -> Recipe:
    """Read a recipe by its name (`mao2015/flickr8k`) or path, and apply `key=value` changes.

    A recipe may name another one as its `base`, by name or as a file (a path from where the recipe itself lies), and
    say only what differs: its sections (model, training, …) are laid
    over the base's key by key, and each key's value replaces the base's as a whole; so does a model of another name.

    Raises:
        SettingsError: no such recipe, or a key or value that does not fit.
    """
    return Recipe.parse(override(_read(name, ()), assignments), where=str(name))


def _read(name: str, before: tuple[str, ...]) -> dict[str, Any]:
    """A recipe's values over those of its base."""
    if name in before:
        raise SettingsError(f"{name}: is its own base ({' -> '.join((*before, name))})")
    path = Path(name)
    if path.suffix not in SUFFIXES:
        path = recipe_folder() / f"{name}.yaml"
        if not path.exists():
            raise SettingsError(f"no recipe '{name}'; there are: {', '.join(recipe_names())}; or give a .yaml file")
    values = read_yaml(path)
    base = values.pop("base", None)
    if base is None:
        return values
    if not isinstance(base, str):
        raise SettingsError(f"{name}: base: expected the name or the file of one recipe (got {base!r})")
    if Path(base).suffix in SUFFIXES:
        base = str(path.parent / base)
    return _laid_over(_read(base, (*before, name)), values)


def _laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Sections key by key; the keys themselves whole."""
    result = dict(below)
    for section, values in above.items():
        other = below.get(section)
        alike = isinstance(values, dict) and isinstance(other, dict) and values.get("name") in (None, other.get("name"))
        result[section] = {**other, **values} if alike else values  # type: ignore[dict-item]  # alike are mappings
    return result


def recipe_names() -> list[str]:
    """Names of the recipes that come with Limner."""
    folder = recipe_folder()
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))


def recipe_folder() -> Path:
    """Where the recipes lie: beside the package when installed, in the checkout when developed."""
    installed = Path(str(resources.files("limner"))) / "recipes"
    return installed if installed.exists() else Path(__file__).parents[3] / "recipes"

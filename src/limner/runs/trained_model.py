"""A trained model and its run directory: config.json, tokenizer.json, model.safetensors and README.md (a model card).

These files are sufficient to rebuild the model. None of them is a pickle.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import xxhash
from torch import Tensor, nn

from limner.bounds import Count
from limner.data.languages import SourceLanguage, TargetLanguage
from limner.errors import RunError, SettingsError
from limner.features.spec import FeatureSpec
from limner.files import read_bytes, write_text
from limner.models import Model, ModelInputs, build_model
from limner.process import find_device, processor_name, use_threads_for
from limner.runs.recipe import Recipe
from limner.runs.records import RunConfig, require_run_directory
from limner.storage.json_text import to_json
from limner.storage.tensors import read_tensors, save_tensors
from limner.text.tokenizer import Tokenizer

WEIGHTS = "model.safetensors"
"""File name of the weights of a model."""
SOURCE_TOKENIZER = "source_tokenizer.json"
"""File name of the source vocabulary of a translation model."""
PACKAGES = ("limner", "torch", "transformers", "tokenizers", "sacrebleu", "numpy")
"""Packages whose versions are recorded."""
_FREE_SECTIONS = ("description", "features", "training", "published")
"""Sections of a recipe that do not determine the results of a trained model; its features are named in config.json."""
_VOCABULARIES = {"vocab_size", "tokenizer_sha256", "source_vocab_size", "source_tokenizer_sha256"}
_DIGESTS = "config"
"""Entry of the weights with the digests of config.json."""


class ModelConfig(RunConfig):
    """Content of config.json: everything needed to rebuild a model, and its provenance."""

    features: tuple[FeatureSpec, ...] = ()
    """Image features the model was trained on; features of another fingerprint are rejected."""
    vocab_size: Count
    """Number of tokens of the target vocabulary, special tokens included."""
    tokenizer_sha256: str = ""
    """SHA-256 of tokenizer.json, set when the model is saved."""
    source_vocab_size: Count | None = None
    """Number of tokens of the source vocabulary (source_tokenizer.json); None for a model that does not translate."""
    source_tokenizer_sha256: str = ""
    """SHA-256 of source_tokenizer.json, set when the model is saved."""

    @property
    def inputs(self) -> ModelInputs:
        """Description of the inputs that the model is built for."""
        return ModelInputs(self.vocab_size, feature_shapes(self.features), self.source_vocab_size)

    def digests(self) -> dict[str, str]:
        """Return a digest of each section that determines results; it is stored with the weights.

        Training settings and descriptions of the run may change.
        """
        sections = {name: values for name, values in self.recipe.items() if name not in _FREE_SECTIONS}
        sections |= {"features": [[spec.kind, spec.fingerprint] for spec in self.features]}
        sections |= self.model_dump(include=_VOCABULARIES)
        texts = {name: to_json(values, sort_keys=True) for name, values in sections.items()}
        return {name: xxhash.xxh3_64_hexdigest(text.encode()) for name, text in texts.items()}


class TrainedModel(NamedTuple):
    """A model with its vocabularies, its configuration and its recipe."""

    model: Model
    tokenizer: Tokenizer
    """Vocabulary of the generated sentences."""
    config: ModelConfig
    recipe: Recipe
    source_tokenizer: Tokenizer | None = None
    """Vocabulary of the source sentences; None for a model that does not translate."""
    folder: Path | None = None
    """Run directory that the model was loaded from."""

    @property
    def target(self) -> TargetLanguage:
        """Language and tokenizer of the sentences the model generates."""
        return TargetLanguage(self.recipe.data.lang, self.tokenizer, self.recipe.model.describes_regions)

    @property
    def source(self) -> SourceLanguage | None:
        """Source language with its vocabulary; None for a model that does not translate."""
        lang = self.recipe.data.source_lang
        if lang is None or self.source_tokenizer is None:
            return None
        return SourceLanguage(lang, self.source_tokenizer)


def feature_shapes(features: Sequence[FeatureSpec]) -> dict[str, tuple[int, ...]]:
    """Return the shape of each kind of features, as in `ModelInputs.feature_shapes`."""
    return {spec.kind: spec.shape for spec in features}


def save_trained_model(folder: Path, trained: TrainedModel) -> None:
    """Write a model to a run directory; each file is replaced atomically, the weights last; or raise RunError."""
    trained.tokenizer.save(folder / "tokenizer.json")
    checksums = {"tokenizer_sha256": sha256(folder / "tokenizer.json")}
    if trained.source_tokenizer is not None:
        trained.source_tokenizer.save(folder / SOURCE_TOKENIZER)
        checksums["source_tokenizer_sha256"] = sha256(folder / SOURCE_TOKENIZER)
    config = trained.config.model_copy(update=checksums)
    config.save(folder / "config.json")
    write_text(folder / "README.md", model_card(config))
    save_tensors(folder / WEIGHTS, trained.model.state_dict(), {_DIGESTS: config.digests()})


def require_trained(folder: Path) -> None:
    """Check that a run directory exists and has weights; its files are not read. RunError if not."""
    require_run_directory(folder)
    if not (folder / WEIGHTS).exists():
        raise RunError(
            f"{folder}: found no model.safetensors, as its training has not validated yet; run 'limner train --resume'"
        )


def read_config(folder: Path) -> tuple[ModelConfig, Recipe]:
    """Read the configuration and the recipe of a complete run, without its weights; RunError if missing or damaged."""
    require_trained(folder)
    config = ModelConfig.load(folder / "config.json")
    try:
        return config, Recipe.parse(config.recipe)
    except SettingsError as error:
        raise RunError(f"{folder / 'config.json'}: {error}; restore the file, or limner.register its model") from None


def load_trained_model(folder: Path | str, device: str = "cpu") -> TrainedModel:
    """Load a model from a run directory, in evaluation mode; the commands choose the number of threads by its size.

    Args:
        folder: run directory.
        device: device of the model: 'cpu', 'cuda' or 'cuda:N'.

    Raises:
        RunError: a file is missing or damaged, or a vocabulary differs from the vocabulary that the model was trained
            with.
        SettingsError: the device is not available.
    """
    folder = Path(folder)
    config, recipe = read_config(folder)
    weights = read_tensors(folder / WEIGHTS)
    _require_same_config(folder / "config.json", config, weights.facts.get(_DIGESTS, {}))
    tokenizer = _load_tokenizer(folder / "tokenizer.json", config.tokenizer_sha256, config.vocab_size)
    source_tokenizer = None
    if config.source_vocab_size is not None:
        path = folder / SOURCE_TOKENIZER
        source_tokenizer = _load_tokenizer(path, config.source_tokenizer_sha256, config.source_vocab_size)
    model = build_model(recipe.model, config.inputs)
    load_weights(model, weights.tensors, str(folder))
    use_threads_for(model.parameters())
    model.eval().to(find_device(device))
    return TrainedModel(model, tokenizer, config, recipe, source_tokenizer, folder)


def _require_same_config(path: Path, config: ModelConfig, expected: dict[str, str]) -> None:
    """Check that a configuration belongs to the weights; weights of earlier versions have no digests."""
    digests = config.digests() if expected else {}
    if changed := sorted(name for name in {*digests, *expected} if digests.get(name) != expected.get(name)):
        raise RunError(
            f"{path}: expected the settings that the weights were saved with, found others in {', '.join(changed)}; "
            "restore the file of the same training, and change settings with the options of the commands"
        )


def _load_tokenizer(path: Path, expected: str, size: int) -> Tokenizer:
    if sha256(path) != expected:
        raise RunError(
            f"{path}: expected the vocabulary this model was trained with (SHA-256 {expected[:12]}… in config.json), "
            "found another one; restore the file of the same training"
        )
    tokenizer = Tokenizer.load(path)
    if len(tokenizer) != size:
        raise RunError(
            f"{path}: expected a vocabulary of {size:,} entries, found {len(tokenizer):,}; restore the file of the "
            "same training"
        )
    return tokenizer


def load_weights(model: Model, weights: dict[str, Tensor], where: str) -> None:
    """Load all weights by name; tables of count-based models have any shape; RunError if others do not match."""
    tensors, parameters = model.state_dict(), dict(model.named_parameters())
    unknown, missing = sorted(set(weights) - set(tensors)), sorted(set(tensors) - set(weights))
    if unknown or missing:
        raise RunError(
            f"{where}: the weights do not match the model: missing {_first_names(missing)}, unknown "
            f"{_first_names(unknown)}; restore config.json and the weights of the same training"
        )
    for name, weight in weights.items():
        if name in parameters and weight.shape != tensors[name].shape:
            raise RunError(
                f"{where}: weight '{name}': expected shape {tuple(tensors[name].shape)}, found {tuple(weight.shape)}; "
                "restore config.json and the weights of the same training"
            )
    try:
        model.load_state_dict(weights)
    except RunError as error:  # tables that do not fit one another
        raise RunError(f"{where}: {error}") from None


def _first_names(names: Sequence[str]) -> str:
    """List the first names."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") or "none"


class TransferredWeights(NamedTuple):
    """Names of the weights that were and were not transferred from another run."""

    taken: tuple[str, ...]
    """Weights that were copied."""
    new: tuple[str, ...]
    """Weights of the model without a weight of the same name and shape in the other run."""
    unused: tuple[str, ...]
    """Weights of the other run whose names the model does not have."""

    def __str__(self) -> str:
        summary = f"{len(self.taken)} weights taken; new: {', '.join(self.new) or 'none'}"
        return summary + (f"; unused: {', '.join(self.unused)}" if self.unused else "")


def transfer_weights(model: Model, weights: dict[str, Tensor]) -> TransferredWeights:
    """Copy the weights of another run that have the same name and shape; leave the others unchanged."""
    tensors = model.state_dict()
    taken = {
        name: weight for name, weight in weights.items() if name in tensors and tensors[name].shape == weight.shape
    }
    model.load_state_dict({**tensors, **taken})
    unused = tuple(name for name in weights if name not in tensors)
    return TransferredWeights(tuple(taken), tuple(name for name in tensors if name not in taken), unused)


def provenance(seed: int, command: str) -> dict[str, Any]:
    """Return the seed, the command line, and the versions and the machine of a run."""
    return {
        "seed": seed,
        "command": command,
        "python": platform.python_version(),
        "machine": f"{processor_name()}, {os.cpu_count()} cores, torch threads {torch.get_num_threads()}",
        **{name: version(name) for name in PACKAGES},
    }


def model_card(config: ModelConfig) -> str:
    """Write the README.md of a run directory."""
    recipe, name = config.recipe, config.recipe["model"]["name"]
    verbs = ("describe", "score") if config.source_vocab_size is None else ("translate", "report")
    facts = "\n".join(f"| {key} | {value} |" for key, value in config.provenance.items())
    features = "\n".join(f"- {spec}" for spec in config.features) or "- none: this model uses no images"
    return (
        f"# {recipe.get('description') or name}\n\n"
        f"A Limner model `{name}` (vocabulary of {config.vocab_size}). Use it with "
        f"`limner {verbs[0]}`, `limner {verbs[1]}` and `limner evaluate`, or `limner.load` in Python.\n\n"
        f"## Image features\n\n{features}\n\n## Provenance\n\n| | |\n|---|---|\n{facts}\n"
    )


def sha256(path: Path) -> str:
    """Compute the SHA-256 of a file in hexadecimal digits; RunError if it cannot be read."""
    try:
        return hashlib.sha256(read_bytes(path)).hexdigest()
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}); restore the file of the training") from None


def model_fingerprint(models: Sequence[TrainedModel]) -> str:
    """Compute a digest of the weights, the vocabulary, the settings and the features of a model or an ensemble."""
    digest = xxhash.xxh3_128()
    for trained in models:
        digest.update(to_json(trained.config.digests(), sort_keys=True).encode())
        for name, values in sorted(cast(nn.Module, trained.model).state_dict().items()):
            digest.update(name.encode())
            digest.update(values.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()

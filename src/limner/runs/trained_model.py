"""A saved model: a folder with config.json, tokenizer.json, model.safetensors and README.md (its model card).

The folder rebuilds the model by itself; nothing in it is a pickle.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from limner.data.dataset import SourceLanguage, TargetLanguage
from limner.device import find_device
from limner.errors import RunError
from limner.features.spec import FeatureSpec
from limner.files import atomic_write, write_text
from limner.models import Model, ModelInputs, build_model
from limner.runs.recipe import Recipe
from limner.runs.records import RunConfig
from limner.text.tokenizer import Tokenizer

SOURCE_TOKENIZER = "source_tokenizer.json"
PACKAGES = ("limner", "torch", "transformers", "tokenizers", "sacrebleu", "numpy")


class Config(RunConfig):
    """Everything needed to rebuild a model, and where it came from."""

    features: tuple[FeatureSpec, ...] = ()
    """What the model was shown; features of another fingerprint are refused."""
    vocab_size: int
    tokenizer_sha256: str = ""
    """Filled in when saved."""
    source_vocab_size: int | None = None
    """Of the language a translation model translates from; its vocabulary is source_tokenizer.json."""
    source_tokenizer_sha256: str = ""

    @property
    def inputs(self) -> ModelInputs:
        """Caption of the inputs that the model is built for."""
        return ModelInputs(self.vocab_size, feature_shapes(self.features), self.source_vocab_size)


class TrainedModel(NamedTuple):
    """A model with what it needs to read and write sentences."""

    model: Model
    tokenizer: Tokenizer
    config: Config
    recipe: Recipe
    source_tokenizer: Tokenizer | None = None
    """Of the language it translates from."""

    @property
    def target(self) -> TargetLanguage:
        """Language and tokenizer of the sentences the model generates."""
        return TargetLanguage(self.recipe.data.lang, self.tokenizer)

    @property
    def source(self) -> SourceLanguage | None:
        """The language it translates from, as examples want it."""
        lang = self.recipe.data.source_lang
        if lang is None or self.source_tokenizer is None:
            return None
        return SourceLanguage(lang, self.source_tokenizer)


def feature_shapes(features: Sequence[FeatureSpec]) -> dict[str, tuple[int, ...]]:
    """Shape of each kind of features, as `ModelInputs.feature_shapes`."""
    return {spec.kind: spec.shape for spec in features}


def save_trained_model(folder: Path, checkpoint: TrainedModel) -> None:
    """Write a model; each file appears whole, the weights last. RunError where the disk refuses."""
    checkpoint.tokenizer.save(folder / "tokenizer.json")
    prints = {"tokenizer_sha256": sha256(folder / "tokenizer.json")}
    if checkpoint.source_tokenizer is not None:
        checkpoint.source_tokenizer.save(folder / SOURCE_TOKENIZER)
        prints["source_tokenizer_sha256"] = sha256(folder / SOURCE_TOKENIZER)
    config = checkpoint.config.model_copy(update=prints)
    config.save(folder / "config.json")
    write_text(folder / "README.md", model_card(config))
    save_tensors(folder / "model.safetensors", checkpoint.model.state_dict())


def load_trained_model(folder: Path | str, device: str = "cpu") -> TrainedModel:
    """Rebuild a model, in evaluation mode on a device (cpu, cuda …).

    Raises:
        RunError: a file is missing or damaged, or the vocabulary is not the one the model was trained with.
    """
    folder = Path(folder)
    if not (folder / "config.json").exists():
        raise RunError(f"{folder}: not a trained model (no config.json); expected the --out of 'limner train'")
    if not (folder / "model.safetensors").exists():
        raise RunError(f"{folder}: no model.safetensors; the training has not validated yet, resume it first")
    config = Config.load(folder / "config.json")
    tokenizer = _load_tokenizer(folder / "tokenizer.json", config.tokenizer_sha256)
    source_tokenizer = None
    if config.source_vocab_size is not None:
        source_tokenizer = _load_tokenizer(folder / SOURCE_TOKENIZER, config.source_tokenizer_sha256)
    recipe = Recipe.parse(config.recipe, where=str(folder / "config.json"))
    model = build_model(recipe.model, config.inputs)
    load_weights(model, load_tensors(folder / "model.safetensors"), str(folder))
    model.eval().to(find_device(device))
    return TrainedModel(model, tokenizer, config, recipe, source_tokenizer)


def _load_tokenizer(path: Path, expected: str) -> Tokenizer:
    if sha256(path) != expected:
        raise RunError(
            f"{path}: not the vocabulary this model was trained with "
            f"(config.json expects SHA-256 {expected[:12]}…); restore the file of the same training"
        )
    return Tokenizer.load(path)


def load_weights(model: Model, weights: dict[str, Tensor], where: str) -> None:
    """Copy weights by name; all must be there and fit (tables that were counted, not learned, may be of any size)."""
    own, learned = model.state_dict(), dict(model.named_parameters())
    unknown, missing = sorted(set(weights) - set(own)), sorted(set(own) - set(weights))
    if unknown or missing:
        raise RunError(
            f"{where}: weights do not fit the model: missing {missing or 'none'}, unknown {unknown or 'none'}"
        )
    for name, weight in weights.items():
        if name in learned and weight.shape != own[name].shape:
            raise RunError(
                f"{where}: weight '{name}' has shape {tuple(weight.shape)}, the model expects {tuple(own[name].shape)}"
            )
    model.load_state_dict(weights)


class TransferredWeights(NamedTuple):
    """Which weights of another run a model began with, by name."""

    taken: tuple[str, ...]
    new: tuple[str, ...]
    """Of the model's own, those that the other run does not have, or has in another shape."""
    unused: tuple[str, ...]
    """Of the other run's, those that the model does not have."""

    def __str__(self) -> str:
        told = f"{len(self.taken)} weights taken; new: {', '.join(self.new) or 'none'}"
        return told + (f"; left: {', '.join(self.unused)}" if self.unused else "")


def transfer_weights(model: Model, weights: dict[str, Tensor]) -> TransferredWeights:
    """Begin with another run's weights where name and shape are the same; the others stay as they are."""
    own = model.state_dict()
    taken = {name: weight for name, weight in weights.items() if name in own and own[name].shape == weight.shape}
    model.load_state_dict({**own, **taken})
    unused = tuple(name for name in weights if name not in own)
    return TransferredWeights(tuple(taken), tuple(name for name in own if name not in taken), unused)


def provenance(seed: int, command: str) -> dict[str, Any]:
    """Facts that tell how a run came about."""
    return {
        "seed": seed,
        "command": command,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, torch threads {torch.get_num_threads()}",
        **{name: version(name) for name in PACKAGES},
    }


def model_card(config: Config) -> str:
    """The README.md of a saved model."""
    recipe, name = config.recipe, config.recipe["model"]["name"]
    verbs = ("describe", "score") if config.source_vocab_size is None else ("translate", "diagnose")
    facts = "\n".join(f"| {key} | {value} |" for key, value in config.provenance.items())
    seen = "\n".join(f"- {spec}" for spec in config.features) or "- nothing: this model reads no pictures"
    return (
        f"# {recipe.get('description') or name}\n\n"
        f"A Limner model `{name}` (vocabulary of {config.vocab_size}). Use it with "
        f"`limner {verbs[0]}`, `limner {verbs[1]}` and `limner evaluate`, or `limner.load` in Python.\n\n"
        f"## What it looks at\n\n{seen}\n\n## Where it comes from\n\n| | |\n|---|---|\n{facts}\n"
    )


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits; a missing file is a RunError."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from None


def save_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write tensors as safetensors, whole or not at all; RunError where the disk refuses."""
    with atomic_write(path, SafetensorError) as beside:
        save_file({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, beside)
        beside.chmod(0o644)  # safetensors makes files that only their owner may read


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file; a damaged one is a RunError."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path}: damaged or missing ({error}); train again or restore the file") from None

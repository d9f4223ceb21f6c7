"""The built-in captioner and translator, and models in the format of transformers: their names and folders.

The built-in models are trained models in the package, with weights in float16. A captioner has the name of its language
(`de`), a translator the names of both (`en-de`). Only a name that begins with `hub:` opens a connection.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from limner.errors import RunError, SettingsError, did_you_mean, missing_extra
from limner.files.structured import StructureError, read_json_file

PRETRAINED = Path(__file__).parent.parent / "pretrained"
"""Folder of the run directories."""
DEFAULT_LANG = "en"
"""Language of the built-in captioner when none is chosen."""
HUB = "hub:"
"""Prefix of the name of a model of the Hugging Face Hub."""


def pretrained_languages() -> tuple[str, ...]:
    """Return the language codes of the built-in captioner, the default first."""
    names = sorted(config.parent.name for config in PRETRAINED.glob("*/config.json"))
    return tuple(sorted((name for name in names if "-" not in name), key=lambda lang: lang != DEFAULT_LANG))


def pretrained_pairs() -> tuple[tuple[str, str], ...]:
    """Return the source and target languages of the built-in translator, the default source language first."""
    names = sorted(config.parent.name.partition("-") for config in PRETRAINED.glob("*-*/config.json"))
    return tuple(sorted(((source, target) for source, _, target in names), key=lambda pair: pair[0] != DEFAULT_LANG))


def pretrained_run(lang: str | None = None) -> Path:
    """Return the run directory of the built-in captioner of a language, by default `DEFAULT_LANG`.

    Raises:
        SettingsError: there is no built-in captioner of this language.
        RunError: the package has no weights.
    """
    languages = pretrained_languages()
    if not languages:
        raise RunError(f"{PRETRAINED}: found no weights of the built-in captioner; install Limner again")
    lang = lang or DEFAULT_LANG
    if lang not in languages:
        from limner.text.queries import LANGUAGE_NAMES

        codes = {name.lower(): code for code, name in LANGUAGE_NAMES.items()}
        code = codes.get(str(lang).lower(), re.split("[-_]", str(lang))[0])
        raise SettingsError(
            f"lang '{lang}': the built-in captioner has the languages {', '.join(languages)}"
            f"{did_you_mean(code, languages) or '; choose one of them.'} Or name a model of another language, a run or "
            "hub:ORG/NAME"
        )
    return PRETRAINED / lang


def pretrained_translator(target: str | None, source: str | None = None) -> Path:
    """Return the run directory of the built-in translator.

    Args:
        target: language of the translations; None for the only target language of `source`.
        source: language of the sentences; None for the only source language of `target`.

    Raises:
        SettingsError: the built-in translator has no such pair of languages, or several.
    """
    pairs = pretrained_pairs()
    matching = [pair for pair in pairs if target in (None, pair[1]) and source in (None, pair[0])]
    if len(matching) != 1:
        known = ", ".join(" to ".join(pair) for pair in pairs)
        raise SettingsError(
            f"expected a pair of languages of the built-in translator ({known or 'no weights'}), got "
            f"{f'{source} to ' if source else ''}{target or 'no target'}; choose a pair, or name another model"
        )
    return PRETRAINED / "-".join(matching[0])


def choose_runs(runs: Sequence[Path | str], lang: str | None) -> tuple[Path | str, ...]:
    """Return run directories, and folders of models of the hub; without any, the directory of the built-in captioner.

    Raises:
        BackboneError: a model of the hub cannot be downloaded.
        SettingsError: there is no built-in captioner of the language, or a language is given with `runs`.
        RunError: the package has no weights.
    """
    if runs and lang is not None:
        raise SettingsError(
            f"lang '{lang}': selects the language of the built-in captioner and has no effect on {runs[0]}; leave one "
            "of them out"
        )
    return tuple(map(local_folder, runs)) or (pretrained_run(lang),)


def is_pretrained(run: Path | str) -> bool:
    """Whether a run directory is part of the package."""
    return Path(run).resolve().parent == PRETRAINED.resolve()


def results_folder(run: Path) -> Path:
    """Return the folder of results: a run directory, ./NAME of other models, or ./ORG--NAME@REVISION of the hub."""
    if str(run).startswith(HUB):
        return Path(str(run).removeprefix(HUB).replace("/", "--"))
    return Path(run.resolve().name) if is_pretrained(run) or model_type(run) is not None else run


def local_folder(run: Path | str) -> Path | str:
    """Return the folder of a model of the hub, downloaded if it is not yet on this machine; other runs unchanged.

    Raises:
        BackboneError: the hub has no such model or revision, cannot be reached, or has no weights in safetensors.
        MissingExtraError: the library that downloads it is not installed.
    """
    name = str(run)
    if not name.startswith(HUB):
        return run
    try:
        from limner.features.encoders.transformers import download
    except ModuleNotFoundError as error:
        raise missing_extra(error, name) from None
    place, _, revision = name.removeprefix(HUB).partition("@")
    patterns = ("*.json", "*.safetensors", "*.txt", "*.model", "*.spm", "*.jinja")
    return download(place, revision or None, patterns, "check the name and the connection, or name a local folder")


def model_name(run: Path | str) -> str:
    """Return the name under which a model is served: of its folder, or of its repository of the hub."""
    name = str(run)
    return name.partition("@")[0].rpartition("/")[2] if name.startswith(HUB) else Path(run).resolve().name


def model_type(folder: Path) -> str | None:
    """Return the family of a model in the format of transformers, its `model_type`; None for other folders."""
    try:
        config = read_json_file(folder / "config.json")
    except (OSError, StructureError):
        return None
    family = config.get("model_type") if isinstance(config, dict) and "recipe" not in config else None
    return family if isinstance(family, str) else None

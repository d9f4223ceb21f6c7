"""Base class of typed, strict settings, and reading of settings from YAML and `key=value` assignments.

This module imports neither torch nor a model; `limner.runs.recipe` combines the settings of all packages.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from limner.errors import SettingsError, did_you_mean, shortened
from limner.files import decode_utf8, open_file
from limner.files.structured import StructureError

_CHOICES = {"literal_error": ("", "expected"), "union_tag_invalid": ("tag", "expected_tags")}
"""Keys in the context of pydantic's errors for an unknown name: the name, and the known names."""
_QUOTED = re.compile(r"'([^']*)'")


class Settings(BaseModel):
    """Base class of all settings: immutable, and unknown keys are errors.

    The docstrings of the attributes are for readers alone: to find them, pydantic parses the source of every class. A
    class is built when values are first validated.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), defer_build=True)

    @classmethod
    def parse(cls, values: dict[str, Any], where: str = "") -> Self:
        """Validate plain values, as read from YAML or JSON; `where` is their origin, named in the error.

        Raises:
            SettingsError: some values are invalid; the message lists every key, such as
                `model.hiden_dim: unknown key; did you mean 'hidden_dim'?`.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise SettingsError(_explain(error, where, cls)) from None


def _explain(error: ValidationError, where: str, settings: type[BaseModel]) -> str:
    messages = []
    for detail in error.errors():
        keys, _ = _settings_at(settings, detail["loc"])
        key = ".".join(keys)
        value = detail.get("input")
        got = f" (got {_shorten(value)})" if isinstance(value, str | int | float | bool | None) else ""
        message = detail["msg"].removeprefix("Value error, ")
        if detail["type"] == "missing":
            message += "; add it"
        if detail["type"] in ("model_type", "model_attributes_type"):
            message = "expected a mapping of keys to values"
        if detail["type"] == "union_tag_not_found":
            message = f"expected {key}.name, which selects the kind"
        if detail["type"] == "extra_forbidden":
            *parents, last = detail["loc"]
            known = [key for candidate in _settings_at(settings, parents)[1] for key in candidate.model_fields]
            message = "unknown key" + (did_you_mean(str(last), known) or f"; expected one of {', '.join(known)}")
        if detail["type"] == "union_tag_invalid":
            message = f"expected a name out of {detail['ctx']['expected_tags']}, found '{detail['ctx']['tag']}'"
        if detail["type"] in _CHOICES:
            value_key, known_key = _CHOICES[detail["type"]]
            known = _QUOTED.findall(str(detail["ctx"][known_key]))
            message += did_you_mean(str(detail["ctx"].get(value_key, value)), known)
        messages.append((f"{key}: " if key else "") + message + got)
    return (f"{where}: " if where else "") + "; ".join(messages)


def _shorten(value: str | int | float | None) -> str:
    """Return a value for a message, shortened."""
    # an integer of thousands of digits has no decimal text
    text = hex(value) if isinstance(value, int) and value.bit_length() > 1000 else repr(value)
    return shortened(text)


def _settings_at(settings: type[BaseModel], path: Sequence[int | str]) -> tuple[list[str], list[type[BaseModel]]]:
    """Follow a path of pydantic, with types of unions; return its keys, and the settings classes at its end."""
    candidates, keys = [settings], []
    for part in path:
        fields = [candidate.model_fields[part] for candidate in candidates if part in candidate.model_fields]
        selected = [candidate for candidate in candidates if part in _tags(candidate)] if len(candidates) > 1 else []
        if fields:
            candidates = [settings_type for field in fields for settings_type in _settings_in(field.annotation)]
        elif selected:
            candidates = selected
            continue
        if "[" not in str(part):  # else a type of a union of plain values
            keys.append(str(part))
    return keys, candidates


def _tags(settings: type[BaseModel]) -> tuple[object, ...]:
    """Return the values of the key `name`, which selects these settings of a union."""
    return get_args(settings.model_fields["name"].annotation) if "name" in settings.model_fields else ()


def _settings_in(annotation: Any) -> list[type[BaseModel]]:  # noqa: ANN401
    """Return the settings that a type consists of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [settings_type for part in get_args(annotation) for settings_type in _settings_in(part)]


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file with a mapping; SettingsError if it is missing or invalid."""
    from limner.files.yaml_text import MAX_YAML_BYTES, parse_yaml

    try:
        with open_file(path) as stream:
            if (size := os.fstat(stream.fileno()).st_size) > MAX_YAML_BYTES:
                raise SettingsError(f"{path}: expected at most {MAX_YAML_BYTES:,} bytes of YAML, found {size:,}")
            data = stream.read()
        values = parse_yaml(decode_utf8(data, SettingsError, lambda line: f"{path}:{line}"))
    except FileNotFoundError:
        raise SettingsError(f"{path}: no such file") from None
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror}); name a YAML file") from None
    except StructureError as error:
        raise SettingsError(f"{path}: cannot be read as YAML: {error}; correct the file") from None
    if not isinstance(values, dict):
        raise SettingsError(f"{path}: expected a mapping of 'key: value' lines, found {type(values).__name__}")
    return values


def override(values: dict[str, Any], assignments: list[str]) -> dict[str, Any]:
    """Apply assignments `a.b=value` to nested values, in order; the values are parsed as YAML.

    Raises:
        SettingsError: an assignment has no '=', its value is not valid YAML, or a key on its path is not a mapping.
    """
    from limner.files.yaml_text import parse_yaml

    result = _copy(values)
    for assignment in assignments:
        key, separator, text = assignment.partition("=")
        if not separator or not key:
            raise SettingsError(f"'{assignment}': expected key=value, for example training.epochs=5")
        *parents, last = key.split(".")
        node = result
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise SettingsError(f"'{assignment}': '{parent}' is a single value without keys")
        try:
            node[last] = parse_yaml(text)
        except StructureError as error:
            raise SettingsError(f"'{assignment}': the value cannot be read as YAML: {error}") from None
    return result


def _copy(values: dict[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, dict) else value for key, value in values.items()}

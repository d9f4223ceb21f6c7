"""Settings: typed, strict, readable. Defaults live in the classes, once.

Importing this module imports neither torch nor any model; the recipe that joins all settings stands in
`limner.runs.recipe`, because it knows every model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from limner.errors import SettingsError


class Settings(BaseModel):
    """Base of all settings: frozen, and a key nobody declared is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=())

    @classmethod
    def parse(cls, values: dict[str, Any], where: str = "") -> Self:
        """Build the settings from plain values.

        Args:
            values: nested plain values, as YAML or JSON gives them.
            where: what the values came from, named in the error.

        Raises:
            SettingsError: names every key that does not fit, `model.mrnn.hiden_dim: Extra inputs are …`.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise SettingsError(_explain(error, where)) from None


def _explain(error: ValidationError, where: str) -> str:
    lines = []
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"])
        given = problem.get("input")
        shown = f" (got {given!r})" if isinstance(given, str | int | float | bool | None) else ""
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "union_tag_not_found":
            message = f"say which one is meant by {key}.name"
        lines.append((f"{key}: " if key else "") + message + shown)
    return (f"{where}: " if where else "") + "; ".join(lines)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read one YAML mapping, or raise SettingsError naming the file."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(f"{path}: cannot be read as YAML: {error}") from None
    if not isinstance(values, dict):
        raise SettingsError(f"{path}: expected 'key: value' lines, found {type(values).__name__}")
    return values


def override(values: dict[str, Any], assignments: list[str]) -> dict[str, Any]:
    """Apply `a.b=value` assignments to nested values, in order; values are read as YAML.

    Raises:
        SettingsError: an assignment has no '=', is not YAML or goes through something that is not a mapping.
    """
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
                raise SettingsError(f"'{assignment}': '{parent}' is a single value, it has no keys of its own")
        try:
            node[last] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise SettingsError(f"'{assignment}': the value cannot be read as YAML: {error}") from None
    return result


def _copy(values: dict[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, dict) else value for key, value in values.items()}

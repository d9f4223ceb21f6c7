"""The command that examines the installation: doctor."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

import limner
from limner.apps.cli.app import MORE
from limner.apps.cli.options import command
from limner.apps.cli.terminal import activity, echo, print_json

DEVELOPMENT_EXTRAS = ("dev", "docs")
"""Extras that users do not need."""


@command(MORE)
def doctor(*, as_json: bool = False) -> None:
    """Show versions, devices, threads, optional extras and cache folders of this installation.

    Example: `limner doctor --json`
    """
    with activity("examining the installation"):
        facts = examine()
    if as_json:
        return print_json(facts)
    extras = {
        name: f"missing ({', '.join(extra['missing'])}): {extra['command']}" if extra["missing"] else "installed"
        for name, extra in facts["extras"].items()
    }
    sections = {
        "versions": {name: facts[name] for name in ("limner", "python", "platform")},
        "packages": {name: version or "missing" for name, version in facts["packages"].items()},
        "devices": dict(device.split(": ", 1) for device in facts["devices"]),
        "threads": facts["threads"],
        "extras": extras,
        "folders": facts["folders"],
    }
    for section, lines in sections.items():
        echo(section)
        width = max((len(name) for name in lines), default=0)
        for name, value in lines.items():
            echo(f"  {name:{width}}  {value}")


def examine() -> dict[str, Any]:
    """Collect versions, devices, threads, extras and folders of this installation; only torch is imported."""
    from limner.process import PARAMETERS_FOR_THREADS, usable_cores

    required = [Requirement(line) for line in metadata.requires("limner") or ()]
    extras = metadata.metadata("limner").get_all("Provides-Extra") or []
    chosen = os.environ.get("OMP_NUM_THREADS")
    rule = f"1 for models below {PARAMETERS_FOR_THREADS:,} parameters, else {usable_cores()}"
    cache = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    hub = Path(os.environ.get("HF_HUB_CACHE", cache / "hub"))
    return {
        "limner": metadata.version("limner"),
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
        "packages": {
            package.name: version
            for package in required
            if (version := _version(package.name)) or _is_needed(package, "")
            if _is_needed(package, "train")
        },
        "devices": _devices(),
        "threads": {
            "threads": f"{chosen} (OMP_NUM_THREADS)" if chosen else rule,
            "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "not set"),
        },
        "extras": {name: _describe_extra(name, required) for name in sorted({*extras} - {*DEVELOPMENT_EXTRAS})},
        "folders": {
            "limner": str(Path(limner.__file__).parent),
            "backbones (HF_HUB_CACHE)": f"{hub}{'' if hub.is_dir() else ' (not created yet)'}",
        },
    }


def _is_needed(requirement: Requirement, *extras: str) -> bool:
    """Whether a requirement of a package belongs to one of its extras; '' for none."""
    return requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _describe_extra(name: str, requirements: list[Requirement]) -> dict[str, Any]:
    """Return the missing packages of an extra, and the command that installs it; docs/install.md has its purpose."""
    of_extra = (package for package in requirements if _is_needed(package, name) and not _is_needed(package, ""))
    missing = [lacking for requirement in of_extra for lacking in _missing_requirements(requirement)]
    command = f"pip install 'limner[{name}]'"
    return {"installed": not missing, "missing": missing, "command": command}


def _missing_requirements(requirement: Requirement) -> Iterator[str]:
    """Yield the packages that are missing or too old, of a requirement and the extras that it names."""
    version = _version(requirement.name)
    if version is None:
        yield requirement.name
    elif not requirement.specifier.contains(version, prereleases=True):
        yield f"{requirement.name}{requirement.specifier}, found {version}"
    elif requirement.extras:
        for inner in map(Requirement, metadata.requires(requirement.name) or ()):
            if _is_needed(inner, *requirement.extras) and not _is_needed(inner, ""):
                yield from _missing_requirements(inner)


def _devices() -> list[str]:
    try:
        import torch
    except ModuleNotFoundError:
        return [f"cpu: {os.cpu_count()} cores"]
    from limner.process import native_bf16

    bf16 = "fast bf16" if native_bf16(torch.device("cpu")) else "no fast bf16"
    devices = [f"cpu: {os.cpu_count()} cores, {bf16}"]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        devices.append(f"cuda:{index}: {properties.name}, {properties.total_memory / 2**30:.0f} GiB")
    return devices

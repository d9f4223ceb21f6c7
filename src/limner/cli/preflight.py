"""Checks of options before weights or a backbone are loaded, so that a mistake is reported at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from limner.runs.trained_model import ModelConfig


def check_runs(
    runs: Sequence[Path], device: str, decoding: Mapping[str, Any] | None = None, backbone: str | None = None
) -> ModelConfig:
    """Check the run folders, the device and the decoding options of a command; weights are not read.

    Args:
        runs: run folders, several for an ensemble.
        device: name of the device.
        decoding: changes of the decoding settings of the first run.
        backbone: value of --backbone.

    Returns:
        Configuration of the first run.

    Raises:
        RunError: a folder is not a complete run.
        SettingsError: the device is not available, or a decoding setting is not allowed; an option has no effect.
    """
    from limner.cli.options import refuse
    from limner.decoding.settings import change_decoding
    from limner.device import find_device
    from limner.runs.trained_model import read_config

    find_device(device)
    configs = [read_config(run) for run in runs]
    changed = change_decoding(configs[0][1].decoding, decoding or {})
    if changed.beam_size == 1 and "beam_size" not in (decoding or {}):  # series of commands may vary the beam size
        reason = "has no effect on one hypothesis, which is ranked with no other; add --beam-size"
        refuse({"--length-penalty": (decoding or {}).get("length_penalty")}, reason)
    if not configs[0][0].features:
        refuse({"--backbone": backbone}, f"{runs[0]} was trained without features of a backbone; leave it out")
    return configs[0][0]

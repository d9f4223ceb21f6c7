"""What the machine is good at."""

from __future__ import annotations

import torch

from limner.errors import SettingsError


def find_device(name: str) -> torch.device:
    """The device of a name (cpu, cuda, cuda:1 …); SettingsError where this machine has none such."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise SettingsError(f"device '{name}': expected cpu, cuda or cuda:N") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SettingsError(f"device '{name}': this torch sees no GPU here; use cpu")
    return device


def native_bf16(device: torch.device) -> bool:
    """Whether the hardware multiplies bfloat16 by itself, and so faster than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()

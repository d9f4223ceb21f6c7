"""Devices: selection by name, and native support of bfloat16."""

from __future__ import annotations

import torch

from limner.errors import SettingsError


def find_device(name: str) -> torch.device:
    """Return the device of a name: cpu, cuda or cuda:N.

    Raises:
        SettingsError: the name is not a device, or the device is not available on this machine.
    """
    if name.partition(":")[0] not in ("cpu", "cuda"):
        raise SettingsError(f"device '{name}': expected cpu, cuda or cuda:N")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise SettingsError(
            f"device '{name}': not available on this machine ({reason}); use cpu, or install a CUDA build of torch"
        ) from None
    return device


def native_bf16(device: torch.device) -> bool:
    """Whether the hardware has bfloat16 matrix products, which are then faster than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def training_device(name: str | None) -> torch.device:
    """Return the device of a name, by default CUDA where it is available, else the CPU; see `find_device`."""
    return find_device(name or ("cuda" if torch.cuda.is_available() else "cpu"))

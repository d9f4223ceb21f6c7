"""Selection of the device, and its support for bfloat16."""

from __future__ import annotations

import torch

from limner.errors import SettingsError


def find_device(name: str) -> torch.device:
    """Return the device of a name (cpu, cuda, cuda:1 …); SettingsError if this machine has no such device."""
    if name.partition(":")[0] not in ("cpu", "cuda"):
        raise SettingsError(f"device '{name}': no such device; say cpu, cuda or cuda:N")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise SettingsError(
            f"device '{name}' cannot be used here ({reason}); say cpu, or cuda or cuda:N where torch sees a GPU"
        ) from None
    return device


def native_bf16(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 matrices natively, which is faster than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()

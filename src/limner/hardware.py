"""What the machine is good at."""

from __future__ import annotations

import torch


def native_bf16(device: torch.device) -> bool:
    """Whether the hardware multiplies bfloat16 by itself, and so faster than float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()

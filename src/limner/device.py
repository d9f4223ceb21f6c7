"""Devices: selection by name, native support of bfloat16, and a limit of what is allocated."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from limner.errors import SettingsError
from limner.process import available_memory, require_memory

_ALLOCATIONS = {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn}


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


class AllocationLimit(TorchFunctionMode):
    """Context in which the tensors created so far and the next one have to fit into the memory of the machine.

    The system gives memory that it does not have, and ends the process when it is used; a tensor that is too large has
    to be refused before it is created. Counts 4 bytes a number.
    """

    def __init__(self, purpose: str, remedy: str, copies: int = 1) -> None:
        """Name what allocates, and the settings to lower, in the error; see `require_memory`.

        Args:
            purpose: what allocates.
            remedy: settings to lower.
            copies: number of tensors of the same size that follow each, itself included.
        """
        super().__init__()
        self.purpose, self.remedy, self.allocated = purpose, remedy, 0
        self.available, self.copies = available_memory(), copies

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Call a function of torch; ResourceError if it creates a tensor without room."""
        if func in _ALLOCATIONS and args:
            self.allocated += 4 * math.prod(args if isinstance(args[0], int) else args[0])
            require_memory(self.copies * self.allocated, self.purpose, self.remedy, self.available)
        return func(*args, **(kwargs or {}))

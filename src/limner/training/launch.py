"""Start of the processes of a training on several devices and machines, by Lightning Fabric or by torchrun."""

from __future__ import annotations

import logging
import os
from datetime import timedelta
from typing import Literal, NamedTuple

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision, Precision
from lightning_fabric.strategies import DDPStrategy
from lightning_fabric.utilities.rank_zero import rank_zero_only
from torch import distributed

from limner.errors import SettingsError, TrainingError
from limner.process import native_bf16, training_device
from limner.runs.recipe import Recipe
from limner.runs.training_settings import TrainingSettings

TIMEOUT = timedelta(minutes=30)
"""Time after which a process that does not answer ends the training; validation metrics are computed by the first one
alone, and can take many minutes."""
ADDRESS = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK")
"""Environment variables by which the processes of several machines find each other, unless torchrun starts them."""


class Devices(NamedTuple):
    """Devices of a training: one process for each."""

    device: str | None = None
    """cpu, cuda or cuda:N; None for cuda where it is available, else cpu."""
    number: int | None = None
    """Number of devices of each machine; None for 1, or for the number of processes that torchrun has started."""
    nodes: int | None = None
    """Number of machines; None for 1, or for that of torchrun."""
    strategy: Literal["auto", "ddp"] = "auto"
    """How the processes work together: `ddp` averages their gradients, and is that of `auto` for several devices."""
    timeout: timedelta = TIMEOUT
    """Time after which a process that does not answer ends the training."""

    def resolved(self) -> Devices:
        """Return the devices with the numbers of torchrun, if it has started this process.

        Raises:
            SettingsError: its numbers are others.
        """
        count, nodes = 1, 1
        if is_torchrun():
            count = int(os.environ["LOCAL_WORLD_SIZE"])
            nodes = int(os.environ["WORLD_SIZE"]) // count
            if (self.number or count, self.nodes or nodes) != (count, nodes):
                raise SettingsError(
                    f"expected the numbers of torchrun, --devices {count} --nodes {nodes}, got --devices "
                    f"{self.number or count} --nodes {self.nodes or nodes}; leave the two options out"
                )
        return self._replace(number=self.number or count, nodes=self.nodes or nodes)

    @property
    def per_machine(self) -> int:
        """Number of processes of each machine."""
        return self.resolved().number or 1

    @property
    def total(self) -> int:
        """Number of processes of all machines."""
        return self.per_machine * (self.resolved().nodes or 1)


ONE_DEVICE = Devices()


def is_torchrun() -> bool:
    """Whether torchrun has started this process."""
    return distributed.is_available() and distributed.is_torchelastic_launched()


def is_first_process() -> bool:
    """Whether this is the process of a training that writes files; true before Fabric has started others."""
    return bool(rank_zero_only.rank == 0)


def launch(recipe: Recipe, devices: Devices) -> Fabric:
    """Start the other processes of this machine, unless torchrun did, and connect all of them.

    Fabric repeats the command of this process in each of the others.

    Raises:
        SettingsError: a device is not available, the recipe cannot be trained on several, or it is not said where the
            other machines are.
        TrainingError: the other processes did not answer.
    """
    chosen = training_device(devices.device)
    devices = devices.resolved()
    several = devices.total > 1
    if several:
        _require_several(recipe, devices, chosen)
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it prints the processes to standard error
    ddp = DDPStrategy(timeout=devices.timeout, find_unused_parameters=True)  # images that a batch lacks
    fabric = Fabric(
        accelerator=chosen.type,
        strategy=ddp if several or devices.strategy == "ddp" else "auto",
        devices=devices.per_machine if chosen.index is None else [chosen.index],
        num_nodes=devices.nodes or 1,
        plugins=BF16Precision("bf16-mixed", chosen.type) if uses_bf16(recipe.training, chosen) else Precision(),
    )
    try:
        fabric.launch()
    except (RuntimeError, ValueError) as error:
        raise TrainingError(
            f"expected {devices.total} processes ({devices.per_machine} on each of {devices.nodes}) at "
            f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}, and they did not connect "
            f"({str(error).splitlines()[0]}); check that the same command runs on every machine"
        ) from None
    return fabric


class BF16Precision(MixedPrecision):  # type: ignore[misc]
    """Matrix products in bf16. The logits are not copied to float32: the loss converts them block by block."""

    def convert_output(self, data: object) -> object:
        return data


def uses_bf16(settings: TrainingSettings, device: torch.device) -> bool:
    """Whether a training multiplies in bf16; `auto` does where the device multiplies bf16 natively."""
    return native_bf16(device) if settings.precision == "auto" else settings.precision == "bf16"


def _require_several(recipe: Recipe, devices: Devices, chosen: torch.device) -> None:
    """Check that the recipe and this machine can train with several processes; SettingsError if not."""
    reason = None
    if not recipe.model.has_gradients:
        reason = "is estimated by counting"
    elif not recipe.model.generates:
        reason = "compares all pairs of a batch with each other"
    if reason is not None:
        raise SettingsError(
            f"--devices {devices.per_machine} --nodes {devices.nodes}: model '{recipe.model.name}' {reason}, in one "
            "process; leave the two options out"
        )
    if chosen.index is not None:
        raise SettingsError(
            f"--device {chosen}: expected a kind of device, cpu or cuda, with {devices.total} processes; use "
            f"--device {chosen.type}"
        )
    if chosen.type == "cuda" and devices.per_machine > torch.cuda.device_count():
        raise SettingsError(
            f"--devices {devices.per_machine}: this machine has {torch.cuda.device_count()} CUDA devices; use at most "
            "these, or --device cpu"
        )
    missing = [name for name in ADDRESS if name not in os.environ]
    if (devices.nodes or 1) > 1 and missing and not is_torchrun():
        raise SettingsError(
            f"--nodes {devices.nodes}: expected the address of the first machine and the number of this one, "
            f"{missing[0]} is not set; start the command with torchrun, or set {', '.join(ADDRESS)}"
        )

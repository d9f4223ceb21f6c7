"""Processes of one training: their start, the share of each in the batches, sums over all of them, and their end.

Lightning Fabric starts the processes and connects them, and averages their gradients. Every process runs the same
program; the first process writes the files and the log.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision, Precision
from lightning_fabric.strategies import DDPStrategy
from lightning_fabric.utilities.rank_zero import rank_zero_only
from torch import Tensor, distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from limner.data.batching import Shards
from limner.errors import LimnerError, SettingsError, TrainingError
from limner.models.protocols import Mean
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
    """Number of machines; None for 1, or for the number of torchrun."""
    timeout: timedelta = TIMEOUT
    """Time after which a process that does not answer ends the training."""

    def resolved(self) -> Devices:
        """Return the devices with the numbers of torchrun, if it has started this process.

        Raises:
            SettingsError: the numbers of the devices differ from the numbers of torchrun.
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
        SettingsError: a device is not available, the recipe cannot be trained on several, or the address of the other
            machines is missing.
        TrainingError: the other processes did not answer.
    """
    chosen = training_device(devices.device)
    devices = devices.resolved()
    several = devices.total > 1
    if several:
        _require_several(recipe, devices, chosen)
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it prints the processes to standard error
    # A batch may lack images, whose parameters are then unused; the gradients lie in the buckets that are exchanged.
    ddp = DDPStrategy(timeout=devices.timeout, find_unused_parameters=True, gradient_as_bucket_view=True)
    fabric = Fabric(
        accelerator=chosen.type,
        strategy=ddp if several else "auto",
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
            f"--nodes {devices.nodes}: expected the address of the first machine and the number of this machine, "
            f"{missing[0]} is not set; start the command with torchrun, or set {', '.join(ADDRESS)}"
        )


T = TypeVar("T")

STORE_TIMEOUT = timedelta(seconds=10)
"""Maximum time to wait for the reason of another process."""
REASON = "limner/reason/{attempt}"
"""Key of the error that ended the first process that failed, in the store of the processes, which torchrun keeps when
it starts them again."""
LOST = ("connection closed by peer", "connection reset by peer", "broken pipe", "timed out", "connection refused")
"""Parts of the messages of gloo and of NCCL after another process ended or stopped answering."""
_ended: list[object] = []
"""Process groups of ended trainings, kept until the program ends. PyTorch's reducer must not hold the last reference:
it would wait for the threads of gloo while it holds Python's global lock, which these threads may wait for."""


class StepLoss(NamedTuple):
    """Loss of the batch of a step in one process."""

    terms: tuple[Mean, ...]
    """Means whose sum is differentiated."""
    tokens: int
    """Number of target tokens."""
    reported: Mean | None = None
    """Value for the log; None for the loss."""

    @property
    def loss(self) -> Tensor:
        """The loss if there is one process, a scalar."""
        return torch.stack([term.value for term in self.terms]).sum()


class GlobalLoss(NamedTuple):
    """Loss of the batch of a step of all processes."""

    loss: Tensor
    """Scalar to differentiate: the mean of its gradients in all processes is the gradient of the loss."""
    value: float
    """The loss."""
    reported: float
    """Value for the log."""
    tokens: int
    """Number of target tokens."""
    interrupted: bool
    """Whether Ctrl-C was pressed in one of the processes."""


class Processes(Shards):
    """The processes of a training, as seen by one of them."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric, self.size, self.rank = fabric, fabric.world_size, fabric.global_rank
        self._store: TCPStore | None = None
        self._reason = REASON.format(attempt=os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        if self.size > 1:
            address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            self._store = TCPStore(address, port, is_master=False, timeout=STORE_TIMEOUT)

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and the log, and shows the progress."""
        return bool(self.rank == 0)

    def seed(self, seed: int, step: int = 0) -> None:
        """Give every process random numbers of its own, for dropout; the first process uses `seed` itself."""
        if self.rank or step:
            torch.manual_seed(int(np.random.SeedSequence([seed, self.rank, step]).generate_state(1)[0]))

    def rows(self, batch: Sequence[int]) -> Sequence[int]:
        """Return the share of this process in the rows of a batch; the first row if there are too few for all."""
        return batch[self.rank :: self.size] or batch[:1]

    def combine(self, step: StepLoss, batch: Sequence[int], interrupted: bool) -> GlobalLoss:
        """Sum the losses of all processes, and divide them by the total counts, for the rows of the whole batch."""
        means = [*step.terms, *([] if step.reported is None else [step.reported])]
        weight = float(self.rank < len(batch))  # 0 if the share is a row of another process
        parts = [part for mean in means for part in (mean.total.detach(), mean.number)]
        numbers = [
            torch.as_tensor(part, dtype=torch.float64, device=self.fabric.device) for part in (*parts, step.tokens)
        ]
        request = torch.tensor([interrupted], dtype=torch.float64, device=self.fabric.device)
        *sums, tokens, requests = self._sum(torch.cat([weight * torch.stack(numbers), request])).tolist()
        counts = [max(1.0, count) for count in sums[1::2]]
        values = [total / count for total, count in zip(sums[::2], counts, strict=True)]
        scales = [weight * self.size / count for count in counts]  # Fabric divides the sum of the gradients by the size
        loss = torch.stack([scale * term.total for scale, term in zip(scales, step.terms, strict=False)]).sum()
        value = sum(values[: len(step.terms)])
        return GlobalLoss(loss, value, value if step.reported is None else values[-1], int(tokens), requests > 0)

    def any(self, condition: bool) -> bool:
        """Whether a condition holds in one of the processes."""
        return bool(self._sum(torch.tensor([float(condition)]))[0] > 0)

    def broadcast(self, value: T) -> T:
        """Return the value of the first process."""
        received: T = self.fabric.broadcast(value)
        return received

    def collect(self, value: T) -> list[T]:
        """Return the values of all processes."""
        if self.size == 1:
            return [value]
        values: list[T] = [value] * self.size
        distributed.all_gather_object(values, value)
        return values

    def local(self, batches: Sequence[T]) -> Sequence[T]:
        return batches[self.rank :: self.size]

    def gather(self, results: Sequence[T]) -> list[T]:
        parts = self.collect(list(results))
        return [parts[k % self.size][k // self.size] for k in range(sum(map(len, parts)))]

    @contextmanager
    def ending_together(self) -> Iterator[None]:
        """Context of a training, in which one error ends all processes with one message.

        A process that fails stores the reason and ends. The others lose the connection at their next sum; the first
        process of every machine then raises the stored reason, and the others end without a message.

        Raises:
            LimnerError: the error of this process, or a TrainingError with the error of another process.
            SystemExit: this is neither the first process of its machine nor the process that failed.
        """
        try:
            yield
        except KeyboardInterrupt:
            if self._prints:
                raise
            raise SystemExit(0) from None
        except Exception as error:
            if self.size == 1:
                raise
            lost = isinstance(error, RuntimeError) and any(text in str(error).lower() for text in LOST)
            if not lost:
                self._store_reason(error)
                if self._prints or not isinstance(error, LimnerError | OSError | MemoryError):
                    raise
            elif self._prints:
                raise TrainingError(self._stored_reason()) from None
            # Fabric kills the first process at once if another process that it started ends with a status other than 0.
            raise SystemExit(int(is_torchrun())) from None
        finally:
            if self.size > 1:
                _ended.append(distributed.group.WORLD)
                distributed.destroy_process_group()

    @property
    def _prints(self) -> bool:
        """Whether the errors of this process are printed: torchrun ends all processes as soon as one has failed."""
        return self.fabric.local_rank == 0 or is_torchrun()

    def _store_reason(self, error: Exception) -> None:
        reason = str(error) if isinstance(error, LimnerError) else f"{type(error).__name__}: {error}"
        with suppress(RuntimeError):  # the first process, which has the store, is gone
            assert self._store is not None
            self._store.compare_set(self._reason, "", f"process {self.rank + 1} of {self.size}: {reason}")

    def _stored_reason(self) -> str:
        with suppress(RuntimeError):
            assert self._store is not None
            if self._store.check([self._reason]):
                return self._store.get(self._reason).decode()
        return (
            f"one of the {self.size} processes has ended or does not answer (it was killed, its memory was not enough, "
            "or its machine is gone); the last saved state is complete: continue with --resume"
        )

    def _sum(self, numbers: Tensor) -> Tensor:
        total = self.fabric.all_reduce(numbers.to(self.fabric.device), reduce_op="sum")
        assert isinstance(total, Tensor)
        return total

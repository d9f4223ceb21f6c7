"""Processes of one training: the share of each in the batches, sums over all of them, and the end of all of them.

Lightning Fabric starts the processes and connects them, and averages their gradients. Every process runs the same
program; the files and the log are written by the first one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from limner.errors import LimnerError, TrainingError
from limner.models.protocols import Mean
from limner.training.launch import is_torchrun

T = TypeVar("T")

STORE_TIMEOUT = timedelta(seconds=10)
"""Time after which the reason of another process is not waited for any longer."""
REASON = "limner/reason/{attempt}"
"""Key of the error that ended the first process that failed, in the store of the processes, which torchrun keeps when
it starts them again."""
LOST = ("connection closed by peer", "connection reset by peer", "broken pipe", "timed out", "connection refused")
"""Parts of the messages of gloo and of NCCL after another process ended or stopped answering."""
_ended: list[object] = []
"""Process groups of ended trainings, kept until the program ends. The last reference must not be that of PyTorch's
reducer: it would wait for the threads of gloo while it holds Python's global lock, which these threads may wait for."""


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


class Processes:
    """The processes of a training, of which this is one. A `limner.data.batching.Shards` of the validation."""

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
        """Give every process random numbers of its own, for dropout; those of the first are of `seed` itself."""
        if self.rank or step:
            torch.manual_seed(int(np.random.SeedSequence([seed, self.rank, step]).generate_state(1)[0]))

    def rows(self, batch: Sequence[int]) -> Sequence[int]:
        """Return the share of this process in the rows of a batch; the first row if there are too few for all."""
        return batch[self.rank :: self.size] or batch[:1]

    def combine(self, step: StepLoss, batch: Sequence[int], interrupted: bool) -> GlobalLoss:
        """Sum the losses of all processes, and divide them by the numbers of all.

        Args:
            step: loss of the share of this process.
            batch: rows of the batch of all processes.
            interrupted: whether Ctrl-C was pressed in this process.
        """
        means = [*step.terms, *([] if step.reported is None else [step.reported])]
        weight = float(self.rank < len(batch))  # 0 if the share is a row of another process
        own = [part for mean in means for part in (mean.total.detach(), mean.number)]
        numbers = [torch.as_tensor(one, dtype=torch.float64, device=self.fabric.device) for one in (*own, step.tokens)]
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

    def own(self, batches: Sequence[T]) -> Sequence[T]:
        """Return the batches of this process; see `limner.data.batching.Shards`."""
        return batches[self.rank :: self.size]

    def gather(self, results: Sequence[T]) -> list[T]:
        """Return the results of the batches of all processes; see `limner.data.batching.Shards`."""
        parts = self.collect(list(results))
        return [parts[k % self.size][k // self.size] for k in range(sum(map(len, parts)))]

    @contextmanager
    def ending_together(self) -> Iterator[None]:
        """Context of a training, in which one error ends all processes with one message.

        A process that fails stores the reason and ends. The others lose the connection at their next sum; the first
        process of every machine then raises the stored reason, and the others end without a message.

        Raises:
            LimnerError: the error of this process, or a TrainingError with that of another one.
            SystemExit: this is neither the first process of its machine nor the one that failed.
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
            # Fabric kills the first process at once if another one that it started ends with a status other than 0.
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

"""Sessions of ONNX Runtime for the graphs of an exported model."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from limner.bounds import Bounds
from limner.decoding.next_tokens import NumpyNextTokens
from limner.decoding.trees import map_leaves, select_rows
from limner.errors import RunError, SettingsError
from limner.features.spec import in_float32
from limner.process import available_memory, has_vnni, usable_cores
from limner.runtime.manifest import EXPORT_AGAIN, FeatureInput
from limner.runtime.wire_format import require_self_contained

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

    from limner.generation.request import Request

ResultT = TypeVar("ResultT")

Tensors = Mapping[str, NDArray[Any]]
"""Tensors of a memory or a state by name."""

LOG_PROBS = "log_probs"
"""Output of the step: log-probabilities of the next tokens, (N K, V)."""
TOKENS = "tokens"
"""Input of the step: the last tokens, (N K,)."""
NEXT = "next."
"""Prefix of the names of the state's outputs."""
PIXELS = "pixels"
"""Input of the backbone: pixel values 0 to 255, (B, crops, H, W, 3)."""
SECONDS_VARIABLE, MEMORY_VARIABLE = "LIMNER_GRAPH_SECONDS", "LIMNER_GRAPH_MEMORY"
"""Environment variables of the limits of graphs."""
DEFAULT_SECONDS = 120.0
"""Seconds that a graph may be loaded or computed."""
MEBIBYTE = 2**20


class GraphLimits(NamedTuple):
    """Time and memory that the graphs of a process may take."""

    seconds: float
    """Seconds that a graph may be loaded, or computed once."""
    memory: int
    """Bytes of all tensors that graphs compute."""


@cache
def graph_limits() -> GraphLimits:
    """Read the limits of the environment, once a process; SettingsError if a limit is not a number in its range."""
    values = []
    for variable, bounds in ((SECONDS_VARIABLE, Bounds(0.1, 10**7, whole=False)), (MEMORY_VARIABLE, Bounds(64, 2**24))):
        try:
            text = os.environ.get(variable)
            values.append(None if text is None else bounds.parse(text))
        except ValueError as error:
            raise SettingsError(f"{variable}: {error}") from None
    seconds, mebibytes = values
    memory = available_memory() or 2**40
    return GraphLimits(seconds or DEFAULT_SECONDS, memory if mebibytes is None else int(mebibytes) * MEBIBYTE)


_waiting: list[SimpleQueue[Callable[[], None]]] = []
"""Queues of the threads that wait for a function to call."""
MAX_WAITING = 16
"""Maximum number of waiting threads; each keeps buffers of ONNX Runtime."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_waiting.clear)  # a forked process has no other threads


def within(seconds: float, function: Callable[[], ResultT], cancel: Callable[[], object]) -> ResultT:
    """Call a function in another thread, which does not keep the process from ending.

    The thread then waits for the next function: its start, and buffers of ONNX Runtime for each thread, take as long as
    a small graph.

    Args:
        seconds: time that the function may take.
        function: function to call.
        cancel: makes the function end early; called after the time, and by Ctrl-C, which waits for the end: an
            interpreter that ends while ONNX Runtime computes aborts.

    Raises:
        TimeoutError: it takes longer; it may be running still.
    """
    result: Future[ResultT] = Future()

    def call() -> None:
        try:
            result.set_result(function())
        except BaseException as error:
            result.set_exception(error)

    try:
        calls = _waiting.pop()
    except IndexError:
        calls = SimpleQueue()
        Thread(target=_call_each, args=(calls,), daemon=True).start()
    calls.put(call)
    try:
        return result.result(seconds)
    except TimeoutError:
        cancel()
        raise
    except KeyboardInterrupt:
        cancel()
        wait([result], seconds)
        raise


def _call_each(calls: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        calls.get()()
        if len(_waiting) >= MAX_WAITING:
            return
        _waiting.append(calls)


class Graph:
    """One graph of an exported model."""

    def __init__(
        self, name: str, data: bytes, threads: int | None = None, read_weights: Callable[[], Tensors] | None = None
    ) -> None:
        """Start a session, with weights the file does not contain; RunError if it cannot, or reads other files."""
        self.name = name
        weights = {} if read_weights is None else read_weights()
        named = require_self_contained(name, data, weights)
        self._threads = threads or usable_cores()
        self._session = _start_session(name, data, self._threads, {name: weights[name] for name in named})
        self.inputs = tuple(argument.name for argument in self._session.get_inputs())
        self.outputs = tuple(argument.name for argument in self._session.get_outputs())

    def __call__(self, values: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Compute all outputs by name; unused values are ignored; RunError for missing values, or after the limit."""
        from onnxruntime import RunOptions

        try:
            inputs, options = {name: values[name] for name in self.inputs}, RunOptions()
        except KeyError as error:
            raise RunError(f"{self.name}: the graph reads {error}, which is not given; {EXPORT_AGAIN}") from None
        seconds = graph_limits().seconds
        try:
            results = within(
                seconds,
                lambda: self._session.run(None, inputs, options),
                lambda: setattr(options, "terminate", True),
            )
        except TimeoutError:
            raise _timeout_error(self.name, "computed", seconds) from None
        except Exception as error:  # the library raises several types
            raise _graph_error(self.name, "computed", error) from None
        return dict(zip(self.outputs, results, strict=True))

    def each(self, values: Sequence[Mapping[str, NDArray[Any]]]) -> list[dict[str, NDArray[Any]]]:
        """Compute the outputs of several inputs, as many at once as there are cores for; errors as of a call."""
        together = 1 if len(values) == 1 else min(len(values), usable_cores() // self._threads)
        if together <= 1:
            return [self(inputs) for inputs in values]
        with ThreadPoolExecutor(together) as pool:
            return list(pool.map(self, values))


def _start_session(name: str, data: bytes, threads: int, weights: Mapping[str, NDArray[Any]]) -> InferenceSession:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # its errors are raised as well
    limits = graph_limits()
    _limit_memory(limits.memory)
    for entry, value in (
        ("session.intra_op.allow_spinning", "0"),
        ("session.load_model_format", "ONNX"),  # the format that has been checked
        ("session.x64quantprecision", str(int(not has_vnni()))),
        ("session.use_env_allocators", "1"),  # whose memory is limited
        ("optimization.constant_folding_max_output_size_in_bytes", str(64 * MEBIBYTE)),
    ):
        options.add_session_config_entry(entry, value)
    if weights:
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value)) for value in weights.values()]
        options.add_external_initializers(list(weights), values)
    try:
        return within(
            limits.seconds,
            lambda: onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"]),
            lambda: options.set_load_cancellation_flag(True),
        )
    except TimeoutError:
        raise _timeout_error(name, "loaded", limits.seconds) from None
    except Exception as error:  # the library raises several types
        raise _graph_error(name, "loaded", error) from None


@cache
def _limit_memory(size: int) -> None:
    """Limit the memory of all sessions of the process together."""
    import onnxruntime

    place = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    onnxruntime.create_and_register_allocator(place, onnxruntime.OrtArenaCfg({"max_mem": size}))


def _timeout_error(name: str, done: str, seconds: float) -> RunError:
    return RunError(
        f"{name}: the graph is not {done} after {seconds:g} s; {EXPORT_AGAIN}, or raise {SECONDS_VARIABLE} for a slow "
        "machine"
    )


def _graph_error(name: str, done: str, error: Exception) -> RunError:
    reason = " ".join(str(error).split())
    if "BFCArena" in reason or isinstance(error, MemoryError):
        size = f"{graph_limits().memory // MEBIBYTE:,} MiB"
        return RunError(f"{name}: cannot be {done} in {size} of memory; {EXPORT_AGAIN}, or raise {MEMORY_VARIABLE}")
    return RunError(f"{name}: cannot be {done} ({reason[:200]}); {EXPORT_AGAIN}")


def start_sessions(
    folder: Path,
    files: Mapping[str, bytes],
    names: Sequence[str],
    weights: Mapping[str, Callable[[], Tensors]],
    threads: int | None = None,
) -> dict[str, Future[Graph]]:
    """Start the sessions of graphs in two threads, the largest first; other work of the caller goes on meanwhile.

    Args:
        folder: exported model, for errors.
        files: contents of the files.
        names: files of the graphs.
        weights: functions that read the weights of graphs without weights.
        threads: number of threads of each graph; None for the number of cores.
    """
    pool = ThreadPoolExecutor(2)
    graphs = {
        name: pool.submit(Graph, str(folder / name), files[name], threads, weights.get(name))
        for name in sorted(names, key=lambda name: -len(files[name]))
    }
    pool.shutdown(wait=False)
    return graphs


class EncodedInputs(NamedTuple):
    """Result of the encoder, a row for each example."""

    constant: Tensors
    """Tensors that all steps read."""
    start: Tensors
    """State before the first token."""


class GraphModel:
    """The encoder and the step of an exported model: the model port of `limner.generation`."""

    def __init__(
        self,
        encoder: Graph,
        step: Graph,
        vocab_size: int,
        memory: Sequence[str],
        state: Sequence[str],
        features: Sequence[FeatureInput] = (),
    ) -> None:
        """Combine the graphs of a model with the names of its memory and its state, and its features."""
        self.vocab_size = vocab_size
        self._encoder, self._step, self._features = encoder, step, tuple(features)
        self._memory, self._state = tuple(memory), tuple(state)

    @property
    def free_memory(self) -> int | None:
        """Bytes of memory that can be allocated."""
        return available_memory()

    def encode(self, requests: Sequence[Request]) -> EncodedInputs:
        """Encode features, zero for a missing image, and source sentences; SettingsError for another kind or shape."""
        inputs: dict[str, NDArray[Any]] = {"present": np.array([bool(request.features) for request in requests])}
        for expected in self._features:
            rows = np.zeros((len(requests), *expected.shape), np.float32)
            for row, request in zip(rows, requests, strict=True):
                features = request.features or {expected.kind: row}
                if (values := features.get(expected.kind)) is None or values.shape != expected.shape:
                    shapes = {kind: values.shape for kind, values in features.items() if values is not None}
                    raise SettingsError(f"expected {expected.kind} features of shape {expected.shape}, got {shapes}")
                row[:] = in_float32(values)
            inputs[expected.kind] = rows
        if requests[0].source_tokens is not None:
            inputs |= pad([request.source_tokens or () for request in requests])
        return self.encoded(self._encoder(inputs))

    def encoded(self, results: Tensors) -> EncodedInputs:
        """Return the outputs of the encoder as a memory."""
        constant, start = ({name: results[name] for name in names} for names in (self._memory, self._state))
        return EncodedInputs(constant, start)

    def start(self, memory: EncodedInputs) -> Tensors:
        """Return the state before the first token."""
        return memory.start

    def step(self, tokens: NDArray[np.int64], memory: EncodedInputs, state: Tensors) -> tuple[NumpyNextTokens, Tensors]:
        """Compute the log-probabilities after the last tokens (N, K), and the next state; RunError if one is NaN."""
        results = self._step({TOKENS: tokens.reshape(-1), **memory.constant, **state})
        log_probs = results[LOG_PROBS]
        if np.isnan(log_probs[:, :1]).any():  # a NaN spreads to all probabilities of its row
            raise RunError(
                "the model computes probabilities that are not numbers (NaN): its graphs are damaged; repeat "
                "'limner export'"
            )
        after = {name: results[NEXT + name] for name in self._state}
        return NumpyNextTokens(log_probs.reshape(*tokens.shape, -1)), after

    select = staticmethod(select_rows)

    @staticmethod
    def concatenate(trees: Sequence[Any]) -> Any:  # noqa: ANN401
        """Concatenate the rows of memories or states."""
        return map_leaves(np.concatenate, trees)


def pad(sequences: Sequence[Sequence[int]]) -> dict[str, NDArray[Any]]:
    """Pad source sentences to one tensor (B, S), with the mask of their tokens."""
    lengths = np.array([len(sequence) for sequence in sequences])[:, None]
    tokens = np.zeros((len(sequences), int(lengths.max(initial=1))), np.int64)
    mask = np.arange(tokens.shape[1]) < lengths
    tokens[mask] = [token for sequence in sequences for token in sequence]
    return {"source": tokens, "source_mask": mask}

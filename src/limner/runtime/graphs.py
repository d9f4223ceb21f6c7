"""Sessions of ONNX Runtime for the graphs of an exported model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from limner.errors import MissingExtraError, RunError
from limner.process import usable_cores
from limner.runtime.manifest import EXPORT_AGAIN, Manifest
from limner.runtime.search import Start, Tensors

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

LOG_PROBS = "log_probs"
"""Output of the step: log-probabilities of the next tokens, (N K, V)."""
TOKENS = "tokens"
"""Input of the step: the last tokens, (N K,)."""
NEXT = "next."
"""Prefix of the names of the state's outputs."""
PIXELS = "pixels"
"""Input of the backbone: pixel values 0 to 255, (B, crops, H, W, 3)."""


class Graph:
    """One graph of an exported model."""

    def __init__(self, name: str, data: bytes, threads: int | None = None) -> None:
        """Start a session.

        Args:
            name: file of the graph, for errors.
            data: content of the file.
            threads: number of threads; None for that of the cores.

        Raises:
            MissingExtraError: ONNX Runtime is not installed.
            RunError: the graph cannot be loaded.
        """
        self.name = name
        self._session = _start_session(name, data, threads)
        self.inputs = tuple(one.name for one in self._session.get_inputs())
        self.outputs = tuple(one.name for one in self._session.get_outputs())

    def __call__(self, values: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Compute all outputs by name; values that are not inputs of the graph are ignored.

        Raises:
            RunError: the graph does not take these values.
        """
        try:
            results = self._session.run(None, {name: values[name] for name in self.inputs})
        except KeyError as error:
            raise RunError(f"{self.name}: the graph reads {error}, which is not given; {EXPORT_AGAIN}") from None
        except Exception as error:  # the library raises several types
            raise RunError(f"{self.name}: cannot be computed ({_one_line(error)}); {EXPORT_AGAIN}") from None
        return dict(zip(self.outputs, results, strict=True))


def _start_session(name: str, data: bytes, threads: int | None) -> InferenceSession:
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtraError("running an exported model", "runtime") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or usable_cores()
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # its errors are raised as well
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the library raises several types
        raise RunError(f"{name}: cannot be loaded ({_one_line(error)}); {EXPORT_AGAIN}") from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def start_sessions(files: Mapping[str, bytes], names: Sequence[str]) -> dict[str, Future[Graph]]:
    """Start the sessions of graphs in two threads, the largest first; other work of the caller goes on meanwhile.

    Args:
        files: contents of the files.
        names: files of the graphs.
    """
    threads = ThreadPoolExecutor(2)
    graphs = {
        name: threads.submit(Graph, name, files[name]) for name in sorted(names, key=lambda one: -len(files[one]))
    }
    threads.shutdown(wait=False)
    return graphs


class StepOfGraph:
    """The step of an exported model, as `search` calls it."""

    def __init__(self, graph: Graph, manifest: Manifest) -> None:
        self._graph = graph
        self._state = [spec.name for spec in manifest.state]

    def __call__(
        self, tokens: NDArray[np.int64], memory: Tensors, state: Tensors
    ) -> tuple[NDArray[np.float32], Tensors]:
        """Compute the log-probabilities of the next tokens, and the next state."""
        results = self._graph({TOKENS: tokens, **memory, **state})
        return results[LOG_PROBS], {name: results[NEXT + name] for name in self._state}


def split_start(manifest: Manifest, results: Mapping[str, NDArray[Any]]) -> Start:
    """Divide the outputs of the encoder into memory and first state."""
    memory, state = ([spec.name for spec in specs] for specs in (manifest.memory, manifest.state))
    return Start({name: results[name] for name in memory}, {name: results[name] for name in state})

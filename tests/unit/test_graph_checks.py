"""Graphs of exported models that read files, that never end, or that take all memory."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event, active_count, current_thread
from time import monotonic, sleep

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from limner.errors import RunError, SettingsError
from limner.runtime import graphs
from limner.runtime.graphs import Graph
from limner.runtime.wire_format import require_self_contained

FLOATS = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
RESULT = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
IR_VERSION = 8


def model_of(nodes, *, inputs=(FLOATS,), **parts):
    functions = {name: parts.pop(name) for name in ("functions",) if name in parts}
    graph = helper.make_graph(nodes, "graph", inputs, [RESULT], **parts)
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=IR_VERSION, **functions)


def outside(name="w", data_type=TensorProto.FLOAT):
    """Return a tensor of two elements whose values are in the file private.bin of the current folder."""
    tensor = TensorProto(name=name, data_type=data_type, dims=[2], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="private.bin")
    return tensor


def inside(values=(1.0, 2.0), name="w"):
    return helper.make_tensor(name, TensorProto.FLOAT, [len(values)], values)


ADD = helper.make_node("Add", ["x", "w"], ["y"])
IDENTITY = helper.make_node("Identity", ["x"], ["y"])
INDICES = helper.make_tensor("i", TensorProto.INT64, [2], [0, 1])


def constant(**attribute):
    return helper.make_node("Constant", [], ["w"], **attribute)


def nested(tensor):
    """Return a graph with a tensor in the branch of a branch."""

    def branch(*nodes, **parts):
        return helper.make_graph(nodes, "branch", [], [RESULT], **parts)

    def choose(then, condition="yes"):
        return helper.make_node("If", [condition], ["y"], then_branch=then, else_branch=branch(IDENTITY))

    inner = choose(branch(ADD, initializer=[tensor]))
    yes = helper.make_tensor("yes", TensorProto.BOOL, [], [True])
    return model_of([choose(branch(inner))], initializer=[yes])


def function(tensor, *, as_default=False):
    node = helper.make_node("Constant", [], ["w"], value=tensor)
    made = helper.make_function("mine", "F", ["x"], ["y"], [node, ADD], [helper.make_opsetid("", 17)])
    if as_default:
        made.attribute_proto.append(helper.make_attribute("t", tensor))
        made.node[0].CopyFrom(helper.make_node("Constant", [], ["w"], value=inside()))
    return model_of([IDENTITY], functions=[made])


def training(tensor):
    model = model_of([IDENTITY])
    model.training_info.add().initialization.initializer.append(tensor)
    return model


PLACES = {
    "initializer": lambda tensor: model_of([ADD], initializer=[tensor]),
    "constant": lambda tensor: model_of([constant(value=tensor), ADD]),
    "branch": nested,
    "tensors": lambda tensor: model_of([helper.make_node("Identity", ["x"], ["y"], unknown=[tensor, tensor])]),
    "sparse initializer": lambda tensor: model_of(
        [ADD], sparse_initializer=[helper.make_sparse_tensor(tensor, INDICES, [2])]
    ),
    "sparse constant": lambda tensor: model_of(
        [constant(sparse_value=helper.make_sparse_tensor(tensor, INDICES, [2])), ADD]
    ),
    "function": function,
    "default of a function": lambda tensor: function(tensor, as_default=True),
    "training": training,
}


@pytest.fixture
def private(tmp_path, monkeypatch):
    """A file in the current folder that is no part of a model."""
    (tmp_path / "private.bin").write_bytes(np.array([5, 7], np.float32).tobytes())
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("place", PLACES)
def test_a_tensor_in_a_file_of_the_current_folder_is_refused(place, private):
    require_self_contained("step.onnx", PLACES[place](inside()).SerializeToString())
    with pytest.raises(RunError, match=r"step\.onnx: .*external data.*limner export"):
        Graph("step.onnx", PLACES[place](outside()).SerializeToString())


def test_indices_in_a_file_are_refused(private):
    sparse = helper.make_sparse_tensor(inside(), INDICES, [2])
    sparse.indices.CopyFrom(outside("i", TensorProto.INT64))
    with pytest.raises(RunError, match="external data"):
        Graph("step.onnx", model_of([ADD], sparse_initializer=[sparse]).SerializeToString())


@pytest.mark.parametrize("part", ["location", "external_data"])
def test_each_mark_of_external_data_is_refused(part, private):
    tensor = outside()
    tensor.ClearField("external_data" if part == "location" else "data_location")
    with pytest.raises(RunError, match="external data"):
        Graph("step.onnx", PLACES["initializer"](tensor).SerializeToString())


@pytest.mark.parametrize("domain", ["com.microsoft", "mine"])
def test_operators_that_may_read_files_are_refused(domain, private):
    node = helper.make_node("EPContext", ["x"], ["y"], domain=domain, embed_mode=0, ep_cache_context="private.bin")
    with pytest.raises(RunError, match=f"expected operators of ONNX, found one of '{domain}'"):
        Graph("step.onnx", model_of([node]).SerializeToString())


def test_the_format_of_onnx_runtime_itself_is_refused(tmp_path):
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "graph.ort")
    options.add_session_config_entry("session.save_model_format", "ORT")
    data = PLACES["initializer"](inside()).SerializeToString()
    onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    with pytest.raises(RunError, match=r"step\.onnx"):
        Graph("step.onnx", (tmp_path / "graph.ort").read_bytes())


@pytest.mark.parametrize("threads", [1, 2])
def test_several_inputs_are_computed_at_once(threads, monkeypatch):
    monkeypatch.setattr(graphs, "usable_cores", lambda: 2)
    graph = Graph("step.onnx", nested(inside()).SerializeToString(), threads)
    results = graph.each([{"x": np.full(2, row, np.float32)} for row in range(5)])
    assert [result["y"].tolist() for result in results] == [[row + 1, row + 2] for row in range(5)]


def test_a_graph_is_computed_and_a_damaged_one_is_one_line():
    data = nested(inside()).SerializeToString()
    assert Graph("step.onnx", data)({"x": np.ones(2, np.float32)})["y"].tolist() == [2, 3]
    for end in range(1, len(data), 7):
        with pytest.raises(RunError, match=r"^step\.onnx: [^\n]*$"):
            Graph("step.onnx", data[:end] + b"\xff")


def endless(*nodes):
    """Return a graph that repeats some nodes 2^62 times."""
    number, yes = helper.make_tensor_value_info("n", 7, []), helper.make_tensor_value_info("yes", 9, [])
    carried = [yes, RESULT] if nodes else [yes, FLOATS]
    body = helper.make_graph(nodes, "body", [number, yes, FLOATS], carried)
    loop = helper.make_node("Loop", ["times", "true", "x"], ["y"], body=body)
    values = [helper.make_tensor("times", 7, [], [2**62]), helper.make_tensor("true", 9, [], [True])]
    return model_of([loop], initializer=values).SerializeToString()


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setenv("LIMNER_GRAPH_SECONDS", "0.2")
    graphs.graph_limits.cache_clear()
    yield
    graphs.graph_limits.cache_clear()


def test_one_thread_computes_what_is_computed_one_after_another():
    busy, threads = Event(), []
    with pytest.raises(TimeoutError):
        graphs.within(0.01, busy.wait, lambda: None)
    for _ in range(9):
        threads.append(graphs.within(60, current_thread, lambda: None))
        with pytest.raises(ZeroDivisionError):
            graphs.within(60, lambda: 1 / 0, lambda: None)
    busy.set()
    assert len({*threads}) < len(threads) and current_thread() not in threads


def test_an_endless_graph_ends_at_the_limit(short):
    graph = Graph("m/step.onnx", endless(helper.make_node("Add", ["x", "x"], ["y"])))
    with pytest.raises(RunError, match=r"m/step\.onnx: the graph is not computed after 0\.2 s;.*LIMNER_GRAPH_SECONDS"):
        graph({"x": np.ones(2, np.float32)})


PROGRAM = """
import sys, numpy
from limner.runtime.graphs import Graph
try:
    Graph("step.onnx", sys.stdin.buffer.read())({"x": numpy.array(eval(sys.argv[1]), sys.argv[2])})
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


def compute(data, *arguments, **limits):
    """Compute a graph in a process of its own."""
    command = [sys.executable, "-c", PROGRAM, *arguments]
    environment = {"PATH": "", "PYTHONPATH": ":".join(sys.path), **limits}
    return subprocess.run(command, input=data, capture_output=True, env=environment, timeout=60)


def test_a_process_ends_where_onnx_runtime_cannot_be_interrupted():
    outcome = compute(endless(), "[1, 1]", "float32", LIMNER_GRAPH_SECONDS="0.3")
    assert outcome.returncode == 1
    assert outcome.stderr.startswith(b"RunError: step.onnx: the graph is not computed after 0.3 s")


def test_memory_is_limited():
    sizes = helper.make_tensor_value_info("x", TensorProto.INT64, [1])
    nodes = [helper.make_node("ConstantOfShape", ["x"], ["zeros"]), helper.make_node("Exp", ["zeros"], ["y"])]
    model = model_of(nodes, inputs=[sizes])
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "n"
    outcome = compute(model.SerializeToString(), "[2**26]", "int64", LIMNER_GRAPH_MEMORY="64")
    assert outcome.returncode == 1
    assert b"RunError: step.onnx: cannot be computed in 64 MiB of memory" in outcome.stderr
    assert b"LIMNER_GRAPH_MEMORY" in outcome.stderr


@pytest.mark.parametrize(("name", "value"), [("LIMNER_GRAPH_SECONDS", "soon"), ("LIMNER_GRAPH_MEMORY", "0")])
def test_limits_are_numbers(name, value, monkeypatch):
    monkeypatch.setenv(name, value)
    graphs.graph_limits.cache_clear()
    with pytest.raises(SettingsError, match=f"{name}: expected a.*number from"):
        graphs.graph_limits()
    monkeypatch.undo()
    graphs.graph_limits.cache_clear()


def test_few_threads_wait_for_the_next_graph():
    before, ready = active_count(), Barrier(40)
    with ThreadPoolExecutor(40) as pool:
        list(pool.map(lambda _: graphs.within(60, ready.wait, lambda: None), range(40)))
    deadline = monotonic() + 20  # threads end after their results
    while active_count() > before + graphs.MAX_WAITING and monotonic() < deadline:
        sleep(0.01)
    assert active_count() <= before + graphs.MAX_WAITING

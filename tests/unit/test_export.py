"""Exported models: the folder, the runtime without torch, and files that were changed."""

import copy
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event, active_count, current_thread
from time import monotonic, sleep

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import xxhash
from onnx import TensorProto, helper
from safetensors.numpy import save_file
from test_process import modules_of

import limner
from limner.apps.export import folder as export_folder
from limner.apps.export import record as recording
from limner.apps.export.folder import export
from limner.errors import LimnerError, RunError, SettingsError
from limner.inference.captioner import Captioner
from limner.runs.concepts import FILE as CONCEPTS
from limner.runs.concepts import WEIGHTS
from limner.runs.trained_model import load_trained_model
from limner.runtime import graphs
from limner.runtime.generators import load_captioner
from limner.runtime.graphs import Graph
from limner.runtime.manifest import MANIFEST, file_checksum, read_manifest
from limner.runtime.wire_format import require_self_contained
from limner.storage.json_text import to_json


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    return export(trained, tmp_path_factory.mktemp("exported") / "exported").folder


@pytest.fixture
def own(exported, tmp_path):
    return shutil.copytree(exported, tmp_path / "own")


@pytest.fixture
def images(tiny):
    return [tiny.image_path(item) for item in tiny.items("test")]


def sentences(captions):
    return [[one.text for one in n_best] for n_best in captions]


@pytest.mark.parametrize(
    "decoding", [{}, {"beam_size": 3, "n_best": 3, "length_penalty": 1.0}, {"min_length": 6, "no_repeat_ngram_size": 2}]
)
def test_captions_are_those_of_the_run(trained, exported, images, decoding):
    expected = Captioner.load(trained).describe(images, prefixes=["look"] * len(images), **decoding)
    captions = limner.load(exported).describe(images, prefixes=["look"] * len(images), batch_size=3, **decoding)
    assert sentences(captions) == sentences(expected)
    log_probs = [[one.log_prob for n_best in decoded for one in n_best] for decoded in (captions, expected)]
    np.testing.assert_allclose(*log_probs, atol=1e-4)


def test_describing_with_an_exported_model_imports_no_torch(exported, images):
    modules, printed = modules_of("describe", images[0], "--model", exported)
    assert printed.startswith(f"{images[0]}\t") and not modules & {"torch", "transformers", "lance", "pyarrow"}


def test_an_unreadable_image_does_not_stop_the_others(exported, images, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"no image")
    results = list(limner.load(exported).describe_each([images[0], tmp_path / "broken.png", images[1]]))
    assert [isinstance(result, LimnerError) for _, result in results] == [False, True, False]


def test_an_exported_model_chooses_captions_by_the_concepts(
    trained_on_colours, backbone_of, colour_concepts, tmp_path, monkeypatch
):
    monkeypatch.setattr(export_folder, "load_backbone_for", lambda *_, **options: backbone_of())
    run = shutil.copytree(trained_on_colours, tmp_path / "run")
    concepts = colour_concepts(red=30, blue=0).concepts
    (run / CONCEPTS).write_text(concepts.file.model_dump_json())
    layer = {"weight": concepts.weight.astype(np.float16), "bias": concepts.bias, "gain": concepts.gain}
    save_file(layer, run / WEIGHTS)
    captioner = Captioner([load_trained_model(run)], backbone_of())
    pixels = [np.full((8, 8, 3), colour, np.uint8) for colour in ((250, 20, 20), (20, 250, 20))]
    expected = captioner.describe(pixels, beam_size=12, n_best=2)
    assert "blue" in expected[0][0].text
    runtime = limner.load(export(run, tmp_path / "out").folder)
    colours = {Path("red"): (250, 20, 20), Path("green"): (20, 250, 20)}
    features = {path: {"pooled": np.array(colour, np.float16) / 255} for path, colour in colours.items()}
    found = runtime.with_features(features).describe([*colours], beam_size=12, n_best=2)
    assert [[c.text for c in n_best] for n_best in found] == [[c.text for c in n_best] for n_best in expected]


def forge(folder, **changes):
    """Change a manifest with its digest, as somebody does who knows how it is computed."""
    values = read_manifest(folder).model_dump(mode="json") | changes
    digest = xxhash.xxh3_64_hexdigest(to_json(values, sort_keys=True).encode())
    (folder / MANIFEST).write_text(to_json({"digest": digest, **values}))


@pytest.mark.parametrize(
    "changes",
    [
        {"files": {"../../etc/passwd": "0"}},
        {"special_tokens": {"pad": 0, "bos": 1, "eos": 1, "unk": 3}},
        {"vocab_size": -1},
        {"preprocessing": {"resize": "squash", "size": 10**9, "short": 10**9}},
    ],
)
def test_a_forged_manifest_is_refused(own, changes):
    forge(own, **changes)
    with pytest.raises(RunError, match=MANIFEST):
        limner.load(own)


def replace_graph(folder, name, graph):
    data = graph.SerializeToString()
    (folder / name).write_bytes(data)
    forge(folder, files=read_manifest(folder).files | {name: file_checksum(data)})


def test_a_graph_cannot_name_files_outside_of_the_folder(own, images, tmp_path):
    graph = onnx.load(own / "step.onnx")
    tensor = max(graph.graph.initializer, key=lambda one: len(one.raw_data))
    secret = tmp_path / "secret"
    secret.write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=str(secret))
    replace_graph(own, "step.onnx", graph)
    with pytest.raises(RunError, match=r"step\.onnx"):
        limner.load(own)


def test_a_file_that_is_too_large_is_not_read(own):
    with (own / "step.onnx").open("r+b") as file:
        file.truncate(2**31)  # sparse: no space is taken
    with pytest.raises(RunError, match=r"step\.onnx: expected at most 2,147,483,647 bytes, found 2,147,483,648"):
        limner.load(own)


def test_graphs_with_values_that_are_not_numbers_give_an_error_and_no_sentence(own, images):
    graph = onnx.load(own / "step.onnx")
    for tensor in graph.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            values = np.full_like(onnx.numpy_helper.to_array(tensor), np.nan)
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    replace_graph(own, "step.onnx", graph)
    with pytest.raises(RunError, match="not numbers"):
        limner.load(own).describe(images[:1])


def test_an_exported_model_samples_by_seed(exported, images):
    model = limner.load(exported)
    options = {"n_best": 4, "sample": {"seed": 1, "temperature": 2.0}}
    captions = model.describe(images, **options)
    assert captions == model.describe(images, **options)
    assert captions != model.describe(images, n_best=4, sample={"seed": 2, "temperature": 2.0})
    assert all(one.log_prob <= best[0].log_prob for best in captions for one in best)


def test_a_run_is_no_exported_model(trained):
    with pytest.raises(RunError, match="name a folder that 'limner export' wrote"):
        load_captioner(trained)


@pytest.fixture(scope="module")
def steep(trained):
    """A model whose log-probabilities are hundreds: the logits of the trained model times a number."""
    model = load_trained_model(trained)
    with torch.no_grad():
        for parameter in model.model.softmax.parameters():
            parameter.mul_(200)
    return model


def test_large_log_probabilities_may_differ_by_rounding(steep, trained, tmp_path, monkeypatch):
    monkeypatch.setattr(export_folder, "load_trained_model", lambda _: steep)
    recorded = export_folder.record_model(steep.model, steep.config.features, None)
    found = recording.largest_difference(steep.model, steep.config.features, None, recorded)
    assert found.scale > 200 and found.value > recording.TOLERANCE
    assert export(trained, tmp_path / "out").difference <= found.allowed


def test_a_wrong_weight_of_a_model_with_large_log_probabilities_is_found(steep, trained, tmp_path, monkeypatch):
    wrong = copy.deepcopy(steep.model)
    with torch.no_grad():
        wrong.softmax.weight[5, 0] *= 1.1
    record = export_folder.record_model
    monkeypatch.setattr(export_folder, "load_trained_model", lambda _: steep)
    monkeypatch.setattr(export_folder, "record_model", lambda _, *rest: record(wrong, *rest))
    message = r"differ from it by .* log-probability, expected at most .* \(0\.0001, and 1e-05 of the largest"
    with pytest.raises(RunError, match=message):
        export(trained, tmp_path / "out")
    assert not (tmp_path / "out").exists()


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

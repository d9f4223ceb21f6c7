"""Exported models: the folder, the runtime without torch, and files that were changed."""

import copy
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import xxhash
from safetensors.numpy import save_file
from test_startup import modules_of

import limner
from limner.apps.export import folder as export_folder
from limner.apps.export import record as recording
from limner.apps.export.folder import export
from limner.errors import LimnerError, RunError
from limner.files.structured import to_json
from limner.inference.captioner import Captioner
from limner.runs.concepts import FILE as CONCEPTS
from limner.runs.concepts import WEIGHTS
from limner.runs.trained_model import load_trained_model
from limner.runtime.generators import load_captioner
from limner.runtime.manifest import MANIFEST, file_checksum, read_manifest


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


@pytest.mark.parametrize("decoding", [{}, {"beam_size": 3, "n_best": 3, "length_penalty": 1.0}, {"min_length": 6}])
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

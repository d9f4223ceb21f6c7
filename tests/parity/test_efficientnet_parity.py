"""EfficientNet-Lite against efficientnet-lite-pytorch, with the published weights."""

import pytest
import torch

from limner.features.encoders.efficientnet import load_efficientnet
from limner.features.encoders.published_weights import VARIANTS, find_weights

published = pytest.importorskip("efficientnet_lite_pytorch", reason="efficientnet-lite-pytorch is not installed")


def outputs_of(network, modules, pixels):
    """Run `network` and return its output and those of some modules."""
    outputs = {}
    for name, module in modules.items():
        module.register_forward_hook(lambda module, inputs, output, name=name: outputs.update({name: output}))
    with torch.no_grad():
        return {"last": network(pixels)} | outputs


@pytest.mark.parametrize(("name", "size"), [*((name, None) for name in VARIANTS), ("efficientnet-lite2", 97)])
def test_every_block_and_the_logits_equal_those_of_efficientnet_lite_pytorch(name, size):
    side = size or VARIANTS[name].size
    theirs = published.EfficientNet.from_name(name, image_size=side).eval()  # the padding is fixed by the size
    theirs.load_state_dict(torch.load(find_weights(name), weights_only=True))
    ours = load_efficientnet(name).module.eval()
    blocks = [block for stage in ours.stages for block in stage]
    assert len(blocks) == len(theirs._blocks)
    pixels = torch.rand(1, 3, side, side, generator=torch.Generator().manual_seed(side)) * 2 - 1
    actual = outputs_of(ours, {str(n): block for n, block in enumerate(blocks)}, pixels)
    expected = outputs_of(theirs, {str(n): block for n, block in enumerate(theirs._blocks)}, pixels)
    logits = expected.pop("last")
    with torch.no_grad():
        expected["last"] = theirs.extract_features(pixels)
        torch.testing.assert_close(ours.classifier(actual["last"].mean((2, 3))), logits, atol=1e-4, rtol=0)
    assert actual.keys() == expected.keys()
    for block in actual:
        torch.testing.assert_close(actual[block], expected[block], atol=1e-4, rtol=0, msg=f"block {block}")

"""The Transformer against the NumPy oracle of Vaswani et al. (2017), with copied weights."""

from __future__ import annotations

import numpy as np
import oracle_transformer
import pytest
import torch

from limner.data.examples import Example, collate
from limner.models import ModelInputs, build_model
from limner.models.transformer import Transformer, TransformerSettings

VOCAB, SOURCE_VOCAB = 11, 9
SOURCE, TARGET = [4, 8, 5, 7, 6], [7, 4, 10, 5]


def built(**changes: object) -> Transformer:
    torch.manual_seed(3)
    sizes = {"layers": 2, "hidden_dim": 8, "inner_dim": 6, "heads": 2, "dropout": 0.3}
    settings = TransformerSettings.model_validate({**sizes, **changes})
    model = build_model(settings, ModelInputs(VOCAB, {}, SOURCE_VOCAB)).eval().double()
    with torch.no_grad():
        for parameter in model.parameters():  # gains of one and biases of zero would hide mistakes
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def weights_of(model: Transformer) -> dict[str, np.ndarray]:
    """The weights by the names of the paper; matrices multiply row vectors from the right."""
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    target = state["target_embedding.weight"]
    weights = {"E_y": target, "E_x": state.get("source_embedding.weight", target)}
    for side, attentions, norms in (
        ("encoder", {"self_attention": ""}, ("self_attention", "feed_forward")),
        (
            "decoder",
            {"self_attention": "self.", "source_attention": "cross."},
            ("self_attention", "source_attention", "feed_forward"),
        ),
    ):
        for number in range(model.settings.layers):
            ours, theirs = f"{side}.{number}", f"{side[:3]}.{number + 1}"
            for name, part in attentions.items():
                keys, values = np.split(state[f"{ours}.{name}.key_value.weight"], 2)
                query, output = (state[f"{ours}.{name}.{one}.weight"] for one in ("query", "output"))
                for letter, matrix in zip("QKVO", (query, keys, values, output), strict=True):
                    weights[f"{theirs}.{part}W_{letter}"] = matrix.T
            for position, name in enumerate(("inner", "outer"), 1):
                weights[f"{theirs}.W_{position}"] = state[f"{ours}.{name}.weight"].T
                weights[f"{theirs}.b_{position}"] = state[f"{ours}.{name}.bias"]
            for position, name in enumerate(norms, 1):
                weights[f"{theirs}.norm_{position}.gain"] = state[f"{ours}.{name}_norm.weight"]
                weights[f"{theirs}.norm_{position}.bias"] = state[f"{ours}.{name}_norm.bias"]
    return weights


@pytest.mark.parametrize("share_embeddings", [True, False])
def test_logits_and_alignments_are_those_of_the_oracle(share_embeddings: bool) -> None:
    model = built(share_embeddings=share_embeddings)
    batch = collate([Example("a", TARGET, SOURCE), Example("b", TARGET[:1], SOURCE[:3])])  # the second is padded
    with torch.no_grad():
        output = model(batch)
    assert output.alignment is not None
    for row, source in enumerate((SOURCE, SOURCE[:3])):
        tokens = batch.target_in[row][: (len(TARGET), 1)[row] + 1].tolist()
        arguments = (weights_of(model), source, tokens)
        sizes = {"layers": model.settings.layers, "heads": model.settings.heads}
        expected = oracle_transformer.logits(*arguments, **sizes)
        np.testing.assert_allclose(output.logits[row, : len(tokens)].numpy(), expected, atol=1e-10)
        alignment = output.alignment[row, : len(tokens)].numpy()
        np.testing.assert_allclose(alignment[:, : len(source)], oracle_transformer.cross_attention(*arguments, **sizes))
        assert (alignment[:, len(source) :] == 0).all()


def logits_with_norms_before(
    weights: dict[str, np.ndarray], source: list[int], target: list[int], layers: int, heads: int
) -> np.ndarray:
    """Logits with x + Sublayer(LayerNorm(x)), and LayerNorm at the end of each stack, by the parts of the oracle."""
    o = oracle_transformer
    memory = o.embed(weights["E_x"], source)
    for name in (f"enc.{layer}" for layer in range(1, layers + 1)):
        normed = o.layer_norm(weights, f"{name}.norm_1", memory)
        memory = memory + o.multi_head(weights, name, normed, normed, heads=heads)[0]
        memory = memory + o.feed_forward(weights, name, o.layer_norm(weights, f"{name}.norm_2", memory))
    memory = o.layer_norm(weights, "enc.norm", memory)
    x = o.embed(weights["E_y"], target)
    for name in (f"dec.{layer}" for layer in range(1, layers + 1)):
        normed = o.layer_norm(weights, f"{name}.norm_1", x)
        x = x + o.multi_head(weights, f"{name}.self", normed, normed, heads=heads, causal=True)[0]
        normed = o.layer_norm(weights, f"{name}.norm_2", x)
        x = x + o.multi_head(weights, f"{name}.cross", normed, memory, heads=heads)[0]
        x = x + o.feed_forward(weights, name, o.layer_norm(weights, f"{name}.norm_3", x))
    return o.layer_norm(weights, "dec.norm", x) @ weights["E_y"].T


def test_norms_before_the_sublayers_are_those_of_the_parts_of_the_oracle() -> None:
    model = built(norm="pre")
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    norms = {
        f"{side[:3]}.norm.{theirs}": state[f"{side}_norm.{ours}"]
        for side in ("encoder", "decoder")
        for ours, theirs in (("weight", "gain"), ("bias", "bias"))
    }
    batch = collate([Example("a", TARGET, SOURCE)])
    with torch.no_grad():
        logits = model(batch).logits[0].numpy()
    weights, settings = weights_of(model) | norms, model.settings
    expected = logits_with_norms_before(weights, SOURCE, batch.target_in[0].tolist(), settings.layers, settings.heads)
    np.testing.assert_allclose(logits, expected, atol=1e-10)

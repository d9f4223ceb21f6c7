"""All variants of the translation models against the oracle of the published equations.

The oracle reads one sentence at a time; the models get one padded batch, with some images missing.
"""

from functools import partial
from typing import NamedTuple

import numpy as np
import oracle_calixto as oracle
import pytest
import torch

from limner.data.examples import Example, collate
from limner.decoding.scoring import sentence_log_probs
from limner.models.nmt import NMT, NMTSettings
from limner.models.protocols import ModelInputs
from limner.text.vocab import SPECIAL_TOKENS
from limner.training.losses import word_loss

SOURCE_VOCAB, VOCAB = 12, 9
SIZES = {"embedding_dim": 5, "hidden_dim": 6, "attention_dim": 7, "readout_dim": 8}
LOCATIONS, DEPTH, POOLED = 4, 3, 2
FEATURE_SHAPES = {"pooled": (POOLED,), "grid": (LOCATIONS, DEPTH)}
SENTENCES = [  # source, target, whether there is an image
    ([4, 5, 6, 7, 11], [4, 5], True),
    ([8], [6, 7, 8, 4, 4, 5], False),
    ([9, 4, 9], [], True),
    ([10, 3, 4, 5], [3], False),
    ([5, 5], [8, 8, 7], True),
]


class Variant(NamedTuple):
    model: oracle.Model
    settings: dict[str, object]
    start: oracle.Start = "text"
    feature_kinds: tuple[str, ...] = ()


VARIANTS = {
    "text-2017": Variant("nmt-2017", {}),
    "text-2017-tied": Variant("nmt-2017", {"tie_embeddings": True, "readout_dim": SIZES["embedding_dim"]}),
    "src-img-2017": Variant("src-img-2017", {"image": ["attention"]}, feature_kinds=("grid",)),
    "src-img-2017-encoder": Variant(
        "src-img-2017", {"image": ["attention"], "encoder_dim": 4}, feature_kinds=("grid",)
    ),
    "doubly-2016-encoder": Variant(
        "doubly-2016",
        {"decoder": "plain", "image": ["initial", "attention"], "initial_state": "first", "encoder_dim": 3},
        "fc7",
        feature_kinds=("pooled", "grid"),
    ),
    "text-2016": Variant("bahdanau-2016", {"decoder": "plain"}),
    "fc7-2016": Variant(
        "fc7-2016",
        {"decoder": "plain", "image": ["initial"], "initial_state": "first"},
        "fc7",
        feature_kinds=("pooled",),
    ),
    "doubly-2016": Variant(
        "doubly-2016",
        {"decoder": "plain", "image": ["initial", "attention"], "initial_state": "first"},
        "fc7",
        feature_kinds=("pooled", "grid"),
    ),
    "doubly-2016-text-start": Variant(
        "doubly-2016", {"decoder": "plain", "image": ["attention"]}, feature_kinds=("grid",)
    ),
    "head-m1": Variant("nmt-2017", {"image": ["prefix"]}, feature_kinds=("pooled",)),
    "head-m3": Variant("nmt-2017", {"image": ["prefix"]}, feature_kinds=("grid",)),
    "head-m1-2016": Variant("bahdanau-2016", {"decoder": "plain", "image": ["prefix"]}, feature_kinds=("pooled",)),
}


@pytest.fixture(params=VARIANTS)
def variant(request):
    return VARIANTS[request.param]


def build(variant: Variant) -> NMT:
    """Ours in float64 with random weights, biases too, large enough for attention weights to differ."""
    settings = NMTSettings.model_validate({**SIZES, **variant.settings})
    model = (
        NMT(settings, ModelInputs(VOCAB, {kind: FEATURE_SHAPES[kind] for kind in variant.feature_kinds}, SOURCE_VOCAB))
        .double()
        .eval()
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.6)
    return model


def examples(variant: Variant, seed: int = 3) -> list[Example]:
    random = np.random.default_rng(seed)
    made = []
    for k, (source, target, image_features) in enumerate(SENTENCES):
        features = {kind: random.normal(size=FEATURE_SHAPES[kind]).astype(np.float16) for kind in variant.feature_kinds}
        made.append(Example(str(k), target, source, features if image_features and features else None))
    return made


def batch_of(some, dtype=torch.float64):
    batch = collate(some)
    present, *feature_kinds = batch.image
    batch.image = type(batch.image)(present, *(None if kind is None else kind.to(dtype) for kind in feature_kinds))
    return batch


def theta_of(model: NMT, variant: Variant) -> dict[str, np.ndarray]:
    """Our parameters under the oracle's names."""
    parameters = {name: value.detach().double().numpy() for name, value in model.named_parameters()}
    theta = {"E_x": parameters["source_embedding.weight"], "E_y": parameters["target_embedding.weight"]}
    theta |= {"W_init": parameters["initial.weight"], "b_init": parameters["initial.bias"]}
    theta |= {"L_s": parameters["readout_hidden.weight"], "b_L": parameters["readout_hidden.bias"]}
    theta |= {"L_w": parameters["readout_word.weight"], "L_cs": parameters["readout_context.weight"]}
    tied = model.settings.tie_embeddings
    theta["L_o"] = theta["E_y"] if tied else parameters["readout.weight"]
    theta["b_o"] = parameters["readout_bias" if tied else "readout.bias"]
    for name, direction in (("enc_fwd", "forwards"), ("enc_bwd", "backwards")):
        theta |= cell(parameters, f"encoder.{direction}.0.cell", name)
    theta |= attention(parameters, "source", "src") | attention(parameters, "image", "img")
    conditional = model.settings.decoder == "conditional"
    second = "rec2" if conditional else "rec"
    if conditional:
        theta |= cell(parameters, "decoder.rec1", "rec1") | cell(parameters, "decoder.rec2", "rec2", "_src")
    else:
        theta |= cell(parameters, "decoder.cell", "rec", "_y")
        theta |= gates("rec.W", parameters["decoder.source_context.weight"], "_src")
    if "decoder.image_context.weight" in parameters:
        theta |= gates(f"{second}.W", parameters["decoder.image_context.weight"], "_img") | {
            "L_ci": parameters["readout_image.weight"]
        }
    if "decoder.gate.weight" in parameters:
        theta |= {"W_beta": parameters["decoder.gate.weight"], "b_beta": parameters["decoder.gate.bias"]}
    if "image_initial.weight" in parameters:
        theta |= {"W_I": parameters["image_initial.weight"].T, "b_I": parameters["image_initial.bias"]}
    oracle.check_parameters(theta, variant.model, variant.start)
    return theta


def cell(parameters: dict[str, np.ndarray], ours: str, theirs: str, suffix: str = "") -> dict[str, np.ndarray]:
    """The weights of a GRU; `suffix` names the inputs of its W."""
    weights = gates(f"{theirs}.W", parameters[f"{ours}.input.weight"], suffix)
    biases = gates(f"{theirs}.b", parameters[f"{ours}.input.bias"])
    return weights | biases | gates(f"{theirs}.U", parameters[f"{ours}.recurrent"])


def gates(name: str, stacked: np.ndarray, suffix: str = "") -> dict[str, np.ndarray]:
    """The reset gate, the update gate and the proposal, which we stack in this order."""
    return {f"{name}{gate}{suffix}": part for gate, part in zip(("_r", "_z", ""), np.split(stacked, 3), strict=True)}


def attention(parameters: dict[str, np.ndarray], ours: str, side: str) -> dict[str, np.ndarray]:
    names = {
        f"decoder.{ours}_attention.query.weight": "U_a",
        f"decoder.{ours}_attention.key.weight": "W_a",
        f"decoder.{ours}_attention.key.bias": "b_a",
        f"decoder.{ours}_attention.score": "v_a",
        f"decoder.{ours}_word.weight": "Y_a",
    }
    return {f"{theirs}_{side}": parameters[name] for name, theirs in names.items() if name in parameters}


def oracle_trace(model: NMT, theta: dict[str, np.ndarray], variant: Variant, one: Example) -> oracle.Trace:
    image_features = {kind: values.astype(np.float64) for kind, values in (one.image or {}).items()}
    oracle_inputs: dict[str, object] = {}
    if "prefix" in model.settings.image:
        vectors = [] if not image_features else np.atleast_2d(next(iter(image_features.values())))
        weight, bias = (value.detach().double().numpy() for value in model.image_prefix.parameters())
        oracle_inputs["head"] = [weight @ vector + bias for vector in vectors]
    if "initial" in model.settings.image:
        oracle_inputs["image"] = image_features.get("pooled")
    if "attention" in model.settings.image:
        oracle_inputs["locations"] = image_features.get("grid")
    decoders = {
        "nmt-2017": oracle.nmt_2017,
        "src-img-2017": oracle.src_img_2017,
        "bahdanau-2016": oracle.bahdanau_2016,
        "fc7-2016": oracle.fc7_2016,
        "doubly-2016": partial(oracle.doubly_attentive_2016, start=variant.start, image=None),
    }
    return decoders[variant.model](
        theta, one.source, [SPECIAL_TOKENS.bos, *one.target, SPECIAL_TOKENS.eos], **oracle_inputs
    )


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=str)
def test_every_position_of_a_padded_batch_equals_the_oracle(variant, dtype, tolerance) -> None:
    model, some = build(variant), examples(variant)
    theta = theta_of(model.to(dtype), variant)
    with torch.no_grad():
        output = model(batch_of(some, dtype))
    same = partial(np.testing.assert_allclose, rtol=0, atol=tolerance)
    for row, one in enumerate(some):
        trace = oracle_trace(model, theta, variant, one)
        steps, width = trace.source_alphas.shape
        same(output.logits[row, :steps], trace.logits)
        # Visual prefix tokens precede the words; missing tokens and words get no weight.
        first = output.alignment.shape[2] - max(len(one.source) for one in some)
        begin = first - (width - len(one.source))
        same(output.alignment[row, :steps, begin : begin + width], trace.source_alphas)
        assert not output.alignment[row, :, :begin].any()
        assert not output.alignment[row, :, begin + width :].any()
        assert (output.gate is None) == (trace.betas is None)
        if trace.betas is not None:
            same(output.gate[row, :steps], trace.betas)
        if "attention" in model.settings.image:
            nothing = np.zeros((steps, LOCATIONS))
            same(output.attention[row, :steps], nothing if trace.image_alphas is None else trace.image_alphas)


def test_a_batch_without_images_equals_the_oracle_without_images(variant) -> None:
    model = build(variant)
    some = [Example(one.id, one.target, one.source) for one in examples(variant)]
    theta = theta_of(model, variant)
    with torch.no_grad():
        batch = batch_of(some)
        ours = sentence_log_probs(model(batch), batch).numpy()
    for row, one in enumerate(some):
        trace = oracle_trace(model, theta, variant, one)
        expected = oracle.sentence_log_prob(trace, [SPECIAL_TOKENS.bos, *one.target, SPECIAL_TOKENS.eos])
        assert ours[row] == pytest.approx(expected, abs=1e-10)


def test_gradient_equals_the_numerical_gradient_of_the_oracle(variant) -> None:
    """Along some directions of all weights at once, against central differences of the oracle's log-probability."""
    model, some = build(variant), examples(variant)
    batch = batch_of(some)
    word_loss(model(batch), batch).backward()
    words, parameters = int(batch.target_mask.sum()), list(model.parameters())

    def log_prob() -> float:
        theta = theta_of(model, variant)
        targets = [[SPECIAL_TOKENS.bos, *one.target, SPECIAL_TOKENS.eos] for one in some]
        traces = [oracle_trace(model, theta, variant, one) for one in some]
        return sum(map(oracle.sentence_log_prob, traces, targets))

    for _ in range(2):
        direction, step = [torch.randn_like(parameter) for parameter in parameters], 1e-5
        expected = 0.0
        for sign in (1, -1):
            with torch.no_grad():
                torch._foreach_add_(parameters, direction, alpha=sign * step)
                expected -= sign * log_prob() / (2 * step * words)
                torch._foreach_add_(parameters, direction, alpha=-sign * step)
        ours = sum(float((p.grad * d).sum()) for p, d in zip(parameters, direction, strict=True))
        assert ours == pytest.approx(expected, rel=1e-6, abs=1e-7)

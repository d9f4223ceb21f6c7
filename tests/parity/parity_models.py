"""Cases of parity: a model with random weights, and the oracle of its equations with the same weights.

A new model adds its case here: settings, shapes of its features, and a function that gives the weights to the oracle.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, get_args

import numpy as np
import oracle_calixto
import oracle_kiros
import oracle_mrnn
import oracle_recurrent
import oracle_show_and_tell
import oracle_show_attend_tell
import oracle_transformer
import oracle_video
import torch

from limner.data.examples import Batch, Example, collate
from limner.models import Model, ModelInputs, ModelSettings, build_model
from limner.models.independent_descriptions import IndependentSettings
from limner.models.log_bilinear import LBLSettings
from limner.models.mrnn import MRNNSettings
from limner.models.mrnn import Variant as MRNNVariant
from limner.models.nmt import NMTSettings
from limner.models.rnn import RNNSettings
from limner.models.show_and_tell import ShowAndTellSettings
from limner.models.show_attend_tell import ShowAttendTellSettings
from limner.models.transformer import TransformerSettings
from limner.models.video_captioner import VideoCaptionerSettings
from limner.text.vocab import SPECIAL_TOKENS

BOS, EOS = SPECIAL_TOKENS.bos, SPECIAL_TOKENS.eos
VOCAB, SOURCE_VOCAB = 13, 12
POOLED, GRID, MAPS = {"pooled": (4,)}, {"grid": (4, 3)}, {"maps": (4, 9, 9)}
SENTENCES = [  # source, target, whether there is an image, number of frames
    ([4, 5, 6, 7, 11], [4, 5], True, 4),
    ([8], [6, 7, 8, 4, 4, 5], False, 1),
    ([9, 4, 9], [], True, 3),
    ([10, 3, 4, 5], [3], False, 2),
    ([5, 5], [8, 8, 9], True, 4),
]
Arrays = dict[str, np.ndarray]
Inputs = Mapping[str, np.ndarray]
"""Features of an image in float64; empty without an image."""


class Expected(NamedTuple):
    """What an oracle gives for each word of a sentence; None where the model has no such result."""

    log_probs: np.ndarray  # (T, V)
    attention: np.ndarray | None = None  # (T, L), over the image
    alignment: np.ndarray | None = None  # (T, S), over the source
    gate: np.ndarray | None = None  # (T,)


class Case(NamedTuple):
    """A model and its oracle."""

    name: str
    settings: ModelSettings
    oracle: Callable[[Model, Sequence[int], Sequence[int], Inputs], Expected]
    """Function of the model, the words that it has read, the source and the image."""
    features: Mapping[str, tuple[int, ...]]
    translates: bool = False
    """Whether it reads a source sentence; images may then be missing."""
    of_clips: bool = False

    def build(self) -> Model:
        """Return the model in float64, with weights that are large enough for attention weights to differ."""
        source = SOURCE_VOCAB if self.translates else None
        return randomised(build_model(self.settings, ModelInputs(VOCAB, dict(self.features), source)))

    def examples(self, *, with_images: bool = True) -> list[Example]:
        """Return sentences of different lengths with random images."""
        random = np.random.default_rng(3)
        examples = []
        for row, (source, target, has_image, frames) in enumerate(SENTENCES):
            image = {name: random.normal(size=shape).astype(np.float16) for name, shape in self.features.items()}
            if self.of_clips:
                image["grid"][frames:] = 0  # shorter clips are padded
            if self.translates and not (has_image and with_images):
                image = {}
            examples.append(Example(str(row), target, source if self.translates else None, image or None))
        return examples

    def expected(self, model: Model, example: Example) -> Expected:
        """Return what the oracle gives for an example."""
        image = {name: values.astype(np.float64) for name, values in (example.image or {}).items()}
        return self.oracle(model, [BOS, *example.target], example.source or (), image)


def randomised(module: Any, scale: float = 0.5, seed: int = 3) -> Any:
    """Add noise to the parameters of a module in float64: biases of zero and gains of one would hide mistakes."""
    torch.manual_seed(seed)
    module.double().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(scale * torch.randn_like(parameter))
    return module


def batch_of(examples: Sequence[Example]) -> Batch:
    """Return a batch whose features are of float64."""
    batch = collate(examples)
    present, *features = batch.image
    batch.image = type(batch.image)(present, *(None if part is None else part.double() for part in features))
    return batch


def array(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor in NumPy."""
    return tensor.detach().numpy()


def arrays(module: torch.nn.Module) -> Arrays:
    """Return the parameters of a module by name."""
    return {name: array(value) for name, value in module.named_parameters()}


def renamed(weights: Arrays, names: Mapping[str, str]) -> Arrays:
    """Return the weights that are there, under the names of an oracle."""
    return {theirs: weights[ours] for ours, theirs in names.items() if ours in weights}


def cell_weights(cell: Any, gates: Sequence[str], names: Sequence[str] = ("W_x{}", "W_h{}", "b_{}")) -> Arrays:
    """Return the weights of a cell, which stacks its gates, under the names of an oracle."""
    theta = {}
    for name, stacked in zip(names, (cell.input.weight, cell.recurrent, cell.input.bias), strict=True):
        parts = np.split(array(stacked), len(gates))
        theta |= {name.format(gate): part for gate, part in zip(gates, parts, strict=True)}
    return theta


def mrnn(model: Any, words: Sequence[int], source: Sequence[int], image: Inputs) -> Expected:
    theta, settings = mrnn_weights(model)
    return Expected(oracle_mrnn.next_word_log_probs(theta, settings, words, image["pooled"]))


def mrnn_weights(model: Any) -> tuple[Arrays, oracle_mrnn.OracleSettings]:
    """Return the weights under the oracle's names, which are ours but for a suffix, and its settings."""
    settings = oracle_mrnn.OracleSettings(model.settings.variant, model.settings.embedding_activation)
    names = {
        **{f"{name}.weight": name for name in ("embedding_1", "recurrent")},
        **{f"multimodal_{part}.weight": f"multimodal_{part}" for part in ("word", "recurrent", "visual")},
        "visual_in_rnn.weight": "visual_shared" if settings.variant == "visInRnn-both-shared" else "visual_in_rnn",
    }
    return {names.get(name, name): value for name, value in arrays(model).items()}, settings


def log_bilinear(model: Any, words: Sequence[int], source: Sequence[int], image: Inputs) -> Expected:
    distribution = lbl_distribution(model, image)
    contexts = oracle_kiros.contexts([*words[1:], EOS], model.settings.context, BOS)
    return Expected(np.log([distribution(context) for context in contexts]))


def lbl_distribution(model: Any, image: Inputs) -> Callable[[tuple[int, ...]], np.ndarray]:
    """Return the oracle's distribution of the next word given a context and an image."""
    weights, variant = arrays(model), model.settings.variant
    matrices = np.split(weights["context.weight"], model.settings.context, axis=1)  # C_1 ... C_(n-1), the nearest last
    if variant == "LBL":
        return partial(oracle_kiros.lbl_distribution, weights["words"], matrices, weights["bias"])
    x = oracle_kiros.convnet(image["maps"], convnet_weights(weights)) if "maps" in image else image["pooled"]
    rest = (matrices, weights["image.weight"], weights["bias"])
    if variant == "MLBL-B":
        return lambda context: oracle_kiros.mlblb_distribution(weights["words"], *rest, context, x)
    factors = (weights["words"], weights["visual_factors.weight"], weights["word_factors.weight"])
    return lambda context: oracle_kiros.mlblf_distribution(*factors, *rest, context, x)


def convnet_weights(weights: Arrays, prefix: str = "image_encoder.convnet.") -> Arrays:
    """Return the weights of the convolutional network of section 5 under the oracle's names."""
    names = {"filters.weight": "filters", "filters.bias": "filter_bias", "project.weight": "weight"}
    return renamed(weights, {prefix + ours: theirs for ours, theirs in (names | {"project.bias": "bias"}).items()})


CELLS = {
    "tanh": (oracle_recurrent.rnn_step, "h"),
    "relu": (oracle_recurrent.relu_step, "h"),
    "leaky": (oracle_recurrent.leaky_step, "h"),
    "lstm": (oracle_recurrent.lstm_step, "ifco"),
    "peephole": (oracle_recurrent.lstm_step, "ifco"),
    "coupled": (oracle_recurrent.coupled_lstm_step, "fco"),
    "gru": (oracle_recurrent.torch_gru_step, "rzh"),
    "gru-before": (oracle_recurrent.gru_step, "rzh"),
}
"""Step of the oracle, and the gates in the order in which our cell stacks them."""


def recurrent_cell(cell: Any, name: str) -> Arrays:
    """Return the weights of a cell of `CELLS`."""
    theta = cell_weights(cell, CELLS[name][1])
    theta |= {f"W_c{gate[0]}": array(weight) for gate, weight in getattr(cell, "peepholes", {}).items()}
    return theta | ({"tau": array(cell.time_constant)} if name == "leaky" else {})


def zero_state(name: str, size: int) -> oracle_recurrent.State:
    """Return the first state of a cell of `CELLS`."""
    return (np.zeros(size),) * (2 if "c" in CELLS[name][1] else 1)


def rnn(model: Any, words: Sequence[int], source: Sequence[int], image: Inputs) -> Expected:
    name, size, vector = model.settings.cell.name, model.settings.hidden_dim, image["pooled"]
    inputs = array(model.embedding.weight)[list(words)]
    read_out = {"W_hy": array(model.softmax.weight), "b_y": array(model.softmax.bias)}
    for number, layer in enumerate(model.output, start=1):
        read_out |= {f"V_{number}": array(layer.weight), f"a_{number}": array(layer.bias)}
    extra = None if model.extra is None else array(model.extra.weight) @ vector + array(model.extra.bias)
    if model.settings.output_recurrence:  # the image is the input x_t, the one-hot target is y_{t-1}
        weight, bias = array(model.feedforward[0].weight), array(model.feedforward[0].bias)
        split, one_hot = inputs.shape[1], np.eye(VOCAB)
        theta = {"W_xh": weight[:, split:], "W_yh": weight[:, :split] @ array(model.embedding.weight).T, "b_h": bias}
        targets = one_hot[[*words[1:], EOS]]
        _, outputs = oracle_recurrent.run_output_recurrence(
            theta | read_out, np.tile(extra, (len(words), 1)), one_hot[BOS], targets
        )
        return Expected(np.log(outputs))
    if extra is not None:
        inputs = np.concatenate([inputs, np.tile(extra, (len(words), 1))], axis=1)
    starts = [zero_state(name, size)] * model.settings.layers
    if model.initial is not None:  # "P(y | x)": h_0 of each layer, and c_0 of an LSTM, from the vector
        parts = np.tanh(array(model.initial.weight) @ vector + array(model.initial.bias)).reshape(-1, size)
        starts = [tuple(part) for part in np.split(parts, len(starts))]
    thetas = [recurrent_cell(layer.cell, name) for layer in model.recurrent.layers]
    states = oracle_recurrent.run_stacked(CELLS[name][0], thetas, inputs, starts)[-1]
    return Expected(
        np.array([oracle_recurrent.output_log_probs(read_out, h) for h in oracle_recurrent.outputs_of(states)])
    )


def show_and_tell(model: Any, words: Sequence[int], source: Sequence[int], image: Inputs) -> Expected:
    names = {"image_embedding.weight": "W_I", "image_embedding.bias": "b_I", "softmax.weight": "W_p"}
    theta = renamed(arrays(model), names | {"softmax.bias": "b_p"}) | {"W_e": array(model.embedding.weight).T}
    cell = model.recurrent.layers[0].cell
    theta |= cell_weights(cell, "ifco", ("W_{}x", "W_{}m", "b_{}"))
    squash = not model.settings.cell.linear_output
    return Expected(oracle_show_and_tell.next_word_log_probs(theta, image["pooled"], words, squash))


def attend_weights(model: Any, values: Arrays) -> Arrays:
    """Return weights, or gradients, of Show, Attend and Tell under the oracle's names."""
    names = {
        "attention.key.weight": "W_att", "attention.key.bias": "b_att", "attention.query.weight": "U_att",
        "attention.score": "v_att", "output.weight": "L_o", "output.bias": "b_out", "output_hidden.weight": "L_h",
        "output_context.weight": "L_z", "gate.bias": "b_beta", "initial_hidden.weight": "W_init_h",
        "initial_hidden.bias": "b_init_h", "initial_cell.weight": "W_init_c", "initial_cell.bias": "b_init_c",
    }  # fmt: skip
    theta = renamed(values, names) | {"E": values["embedding.weight"].T}
    if "gate.weight" in values:
        theta["w_beta"] = values["gate.weight"][0]
    stacked = {"W_{}y": "cell.input.weight", "W_{}h": "cell.recurrent", "b_{}": "cell.input.bias"}
    for pattern, name in (stacked | {"W_{}z": "context.weight"}).items():
        theta |= {pattern.format(gate): part for gate, part in zip("ifgo", np.split(values[name], 4), strict=True)}
    return theta


def show_attend_tell(model: Any, words: Sequence[int], source: Sequence[int], image: Inputs) -> Expected:
    squash = model.settings.output_activation == "tanh"
    theta = attend_weights(model, arrays(model))
    steps = oracle_show_attend_tell.run(theta, image["grid"], [*words, EOS], squash=squash)
    log_probs, alphas, betas = (np.array([getattr(s, name) for s in steps]) for name in ("log_probs", "alpha", "beta"))
    return Expected(log_probs, alphas, gate=betas)


GRU = ("_r", "_z", "")
"""The reset gate, the update gate and the proposal, which a GRU of ours stacks in this order."""


def gru(cell: Any, name: str, suffix: str = "") -> Arrays:
    """Return the weights of a GRU for `oracle_calixto`; `suffix` names the inputs of its W."""
    return cell_weights(cell, GRU, (f"{name}.W{{}}{suffix}", f"{name}.U{{}}", f"{name}.b{{}}"))


def of_trace(trace: oracle_calixto.Trace) -> Expected:
    log_probs = [oracle_recurrent.log_softmax(logits) for logits in trace.logits]
    return Expected(np.array(log_probs), trace.image_alphas, trace.source_alphas, trace.betas)


def nmt_weights(model: Any) -> Arrays:
    """Return the weights of a translation model under the oracle's names."""
    weights, decoder = arrays(model), model.decoder
    names = {
        "source_embedding.weight": "E_x", "target_embedding.weight": "E_y", "initial.weight": "W_init",
        "initial.bias": "b_init", "readout_hidden.weight": "L_s", "readout_hidden.bias": "b_L",
        "readout_word.weight": "L_w", "readout_context.weight": "L_cs", "readout_image.weight": "L_ci",
        "readout.weight": "L_o", "readout.bias": "b_o", "readout_bias": "b_o", "decoder.gate.weight": "W_beta",
        "decoder.gate.bias": "b_beta", "image_initial.bias": "b_I",
    }  # fmt: skip
    for side, short in (("source", "src"), ("image", "img")):
        layer = f"decoder.{side}_attention"
        names |= {f"{layer}.query.weight": f"U_a_{short}", f"{layer}.key.weight": f"W_a_{short}"}
        names |= {f"{layer}.key.bias": f"b_a_{short}", f"{layer}.score": f"v_a_{short}"}
        names |= {f"decoder.{side}_word.weight": f"Y_a_{short}"}
    theta = renamed(weights, names)
    if model.settings.tie_embeddings:
        theta["L_o"] = theta["E_y"]
    if "image_initial.weight" in weights:
        theta["W_I"] = weights["image_initial.weight"].T
    theta |= gru(model.encoder.forwards[0].cell, "enc_fwd") | gru(model.encoder.backwards[0].cell, "enc_bwd")
    contexts = {"image_context": "_img"}
    if model.settings.decoder == "conditional":
        theta |= gru(decoder.rec1, "rec1") | gru(decoder.rec2, "rec2", "_src")
    else:
        theta |= gru(decoder.cell, "rec", "_y")
        contexts["source_context"] = "_src"
    last = "rec2" if model.settings.decoder == "conditional" else "rec"
    for layer, suffix in contexts.items():
        if f"decoder.{layer}.weight" in weights:
            parts = np.split(weights[f"decoder.{layer}.weight"], 3)
            theta |= {f"{last}.W{gate}{suffix}": part for gate, part in zip(GRU, parts, strict=True)}
    return theta


def nmt(
    decoder: Callable[..., oracle_calixto.Trace], model: Any, words: Sequence[int], source: Sequence[int], image: Inputs
) -> Expected:
    inputs: dict[str, object] = {}
    if "prefix" in model.settings.image:
        weight, bias = map(array, model.image_prefix.parameters())
        vectors = np.atleast_2d(next(iter(image.values()))) if image else ()
        inputs["head"] = [weight @ vector + bias for vector in vectors]
    if "initial" in model.settings.image:
        inputs["image"] = image.get("pooled")
    if "attention" in model.settings.image:
        inputs["locations"] = image.get("grid")
    return of_trace(decoder(nmt_weights(model), source, [*words, EOS], **inputs))


def independent(model: Any, words: Sequence[int], source: Sequence[int], image: Inputs) -> Expected:
    names = {
        "source.embedding.weight": "E_x", "target.embedding.weight": "E_y", "image.weight": "W_v", "image.bias": "b_v",
        "initial.weight": "W_init", "initial.bias": "b_init", "target.readout_hidden.weight": "L_s",
        "target.readout_hidden.bias": "b_L", "target.readout_word.weight": "L_w", "target.readout.weight": "L_o",
        "target.readout.bias": "b_o",
    }  # fmt: skip
    theta = renamed(arrays(model), names)
    theta |= gru(model.source.recurrent.cell, "enc") | gru(model.target.recurrent.cell, "rec")
    trace = oracle_calixto.independent_2015(theta, [BOS, *source], [*words, EOS], image.get("pooled"))
    return of_trace(trace)


def transformer_weights(model: Any) -> Arrays:
    """Return the weights by the names of the paper; matrices multiply row vectors from the right."""
    state = {name: array(value) for name, value in model.state_dict().items()}
    target = state["target_embedding.weight"]
    weights = {"E_y": target, "E_x": state.get("source_embedding.weight", target)}
    sides = {
        "encoder": ({"self_attention": ""}, ("self_attention", "feed_forward")),
        "decoder": (
            {"self_attention": "self.", "source_attention": "cross."},
            ("self_attention", "source_attention", "feed_forward"),
        ),
    }
    for side, (attentions, norms) in sides.items():
        for number in range(model.settings.layers):
            ours, theirs = f"{side}.{number}", f"{side[:3]}.{number + 1}"
            for name, part in attentions.items():
                keys, values = np.split(state[f"{ours}.{name}.key_value.weight"], 2)
                query, output = (state[f"{ours}.{name}.{layer}.weight"] for layer in ("query", "output"))
                for letter, matrix in zip("QKVO", (query, keys, values, output), strict=True):
                    weights[f"{theirs}.{part}W_{letter}"] = matrix.T
            for position, name in enumerate(("inner", "outer"), 1):
                weights[f"{theirs}.W_{position}"] = state[f"{ours}.{name}.weight"].T
                weights[f"{theirs}.b_{position}"] = state[f"{ours}.{name}.bias"]
            for position, name in enumerate(norms, 1):
                weights[f"{theirs}.norm_{position}.gain"] = state[f"{ours}.{name}_norm.weight"]
                weights[f"{theirs}.norm_{position}.bias"] = state[f"{ours}.{name}_norm.bias"]
        if model.settings.norm == "pre":
            weights |= {f"{side[:3]}.norm.gain": state[f"{side}_norm.weight"]}
            weights |= {f"{side[:3]}.norm.bias": state[f"{side}_norm.bias"]}
    return weights


def transformer(model: Any, words: Sequence[int], source: Sequence[int], image: Inputs) -> Expected:
    weights, sizes = transformer_weights(model), {"layers": model.settings.layers, "heads": model.settings.heads}
    if model.settings.norm == "pre":
        logits = logits_with_norms_before(weights, source, words, **sizes)
        return Expected(np.array([oracle_recurrent.log_softmax(row) for row in logits]))
    logits = oracle_transformer.logits(weights, source, words, **sizes)
    alignment = oracle_transformer.cross_attention(weights, source, words, **sizes)
    return Expected(np.array([oracle_recurrent.log_softmax(row) for row in logits]), alignment=alignment)


def logits_with_norms_before(
    weights: Arrays, source: Sequence[int], target: Sequence[int], layers: int, heads: int
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


def video(model: Any, words: Sequence[int], source: Sequence[int], image: Inputs) -> Expected:
    settings, frames = model.settings, image["grid"]
    lstms = [cell_weights(cell, "ifco") for cell in model.cells]
    visual = np.split(array(model.visual.weight), 4)  # the clip is further columns of the input
    for gate, columns in zip("ifco", visual, strict=True):
        weights = lstms[settings.visual_layer - 1]
        weights[f"W_x{gate}"] = np.concatenate([weights[f"W_x{gate}"], columns], 1)
    theta = {"lstm": lstms} | renamed(
        arrays(model), {"embedding.weight": "E", "softmax.weight": "W_o", "softmax.bias": "b_o"}
    )
    if model.attention is not None:
        names = {"query.weight": "U_a", "key.weight": "W_a", "key.bias": "b_a", "score": "u"}
        theta["attention"] = renamed(arrays(model.attention), names)
    if model.frame_layers is not None:
        theta["frames"] = cell_weights(model.frame_layers.layers[0].cell, "ifco")
    frames = frames[: np.flatnonzero(frames.any(axis=1))[-1] + 1]
    log_probs, alphas = oracle_video.log_probs(theta, frames, words, settings.visual_layer, settings.frames)
    return Expected(log_probs, np.array(alphas) if settings.frames == "attention" else None)


SIZES = {"embedding_dim": 5, "hidden_dim": 6}
MRNN = [
    *((variant, "linear") for variant in get_args(MRNNVariant)),
    *((variant, "relu") for variant in ("m-RNN", "visInRnn-both", "OneLayerEmb")),
]
DOUBLY = {"decoder": "plain", "image": ["initial", "attention"], "initial_state": "first"}
NMT = {
    "text-2017": (oracle_calixto.nmt_2017, {}, {}),
    "text-2017-tied": (oracle_calixto.nmt_2017, {"tie_embeddings": True, "readout_dim": 5}, {}),
    "src-img-2017": (oracle_calixto.src_img_2017, {"image": ["attention"]}, GRID),
    "src-img-2017-encoder": (oracle_calixto.src_img_2017, {"image": ["attention"], "encoder_dim": 4}, GRID),
    "text-2016": (oracle_calixto.bahdanau_2016, {"decoder": "plain"}, {}),
    "fc7-2016": (oracle_calixto.fc7_2016, DOUBLY | {"image": ["initial"]}, POOLED),
    "doubly-2016": (oracle_calixto.doubly_attentive_2016, DOUBLY, POOLED | GRID),
    "doubly-2016-encoder": (oracle_calixto.doubly_attentive_2016, DOUBLY | {"encoder_dim": 3}, POOLED | GRID),
    "doubly-2016-text-start": (
        partial(oracle_calixto.doubly_attentive_2016, start="text", image=None),
        {"decoder": "plain", "image": ["attention"]},
        GRID,
    ),
    "prefix-m1": (oracle_calixto.nmt_2017, {"image": ["prefix"]}, POOLED),
    "prefix-m4": (oracle_calixto.nmt_2017, {"image": ["prefix"]}, GRID),
    "prefix-m1-2016": (oracle_calixto.bahdanau_2016, {"decoder": "plain", "image": ["prefix"]}, POOLED),
}
RNN = [
    *({"cell": cell, "conditioning": "both", "output_layers": 2} for cell in CELLS),
    *({"cell": cell, "conditioning": kind} for cell in ("tanh", "lstm") for kind in ("every-step", "initial-state")),
    {"cell": "relu", "conditioning": "initial-state", "layers": 2},
    {"cell": "tanh", "conditioning": "every-step", "output_recurrence": True},
]
TRANSFORMER = ({"share_embeddings": True}, {"share_embeddings": False}, {"norm": "pre"})
VIDEO = (
    {},  # Venugopalan et al.; LRCN-2u
    {"layers": 1},  # LRCN-1u
    {"visual_layer": 2},  # LRCN-2f
    {"layers": 4, "visual_layer": 3},  # LRCN-4f
    {"frames": "attention"},
    {"frames": "attention", "visual_layer": 2, "frame_encoder_dim": 3},
    {"frames": "last", "frame_encoder_dim": 3},
)


def mrnn_settings(variant: str, activation: str) -> MRNNSettings:
    """Return settings of a variant of the m-RNN."""
    multimodal = 6 if variant == "visInRnn-both-shared" else 8
    changes = {"variant": variant, "multimodal_dim": multimodal, "embedding_activation": activation}
    return MRNNSettings.model_validate(SIZES | changes)


def lbl_settings(variant: str) -> LBLSettings:
    """Return settings of a log-bilinear model."""
    image_encoder = {"convnet_dim": 8}
    return LBLSettings.model_validate(
        {"variant": variant, "word_dim": 5, "context": 3, "factors": 7, "image_encoder": image_encoder}
    )


def _name(*parts: object) -> str:
    values = (part.values() if isinstance(part, dict) else [part] for part in parts)
    return "-".join(str(value) for group in values for value in group)


CASES = [
    *(Case(_name("mrnn", *row), mrnn_settings(*row), mrnn, POOLED) for row in MRNN),
    *(Case(variant, lbl_settings(variant), log_bilinear, POOLED) for variant in ("LBL", "MLBL-B", "MLBL-F")),
    Case("MLBL-B-maps", lbl_settings("MLBL-B"), log_bilinear, MAPS),
    *(Case(_name("rnn", row), RNNSettings.model_validate(SIZES | row), rnn, POOLED) for row in RNN),
    *(
        Case(_name("tell", linear), ShowAndTellSettings.model_validate(SIZES | {"cell": cell}), show_and_tell, POOLED)
        for linear in (True, False)
        for cell in ({"name": "lstm", "linear_output": linear},)
    ),
    *(
        Case(_name("attend", activation), ShowAttendTellSettings.model_validate(sizes), show_attend_tell, GRID)
        for activation in ("linear", "tanh")
        for sizes in (SIZES | {"attention_dim": 7, "output_activation": activation},)
    ),
    *(
        Case(_name("nmt", name), NMTSettings.model_validate(sizes | changes), partial(nmt, decoder), features, True)
        for name, (decoder, changes, features) in NMT.items()
        for sizes in (SIZES | {"attention_dim": 7, "readout_dim": 8},)
    ),
    Case("independent", IndependentSettings.model_validate(SIZES | {"readout_dim": 4}), independent, POOLED, True),
    *(
        Case(_name("transformer", row), TransformerSettings.model_validate(sizes | row), transformer, {}, True)
        for row in TRANSFORMER
        for sizes in ({"layers": 2, "hidden_dim": 8, "inner_dim": 6, "heads": 2, "dropout": 0.3},)
    ),
    *(
        Case(_name("video", row), VideoCaptionerSettings.model_validate(sizes | row), video, GRID, of_clips=True)
        for row in VIDEO
        for sizes in (SIZES | {"attention_dim": 6},)
    ),
]

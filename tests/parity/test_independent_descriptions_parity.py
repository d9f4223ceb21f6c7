"""Our independent descriptions against the oracle of the translation decoders, in NumPy float64."""

import dataclasses

import numpy as np
import oracle_calixto as oracle
import pytest
import torch

from limner.data.examples import Example, collate
from limner.decoding.scoring import sentence_log_probs
from limner.models.independent_descriptions import IndependentDescriptions, IndependentSettings
from limner.models.protocols import ModelInputs
from limner.text.vocab import SPECIAL_TOKENS

SOURCE_VOCAB, VOCAB, IMAGE_DIM = 12, 9, 7
PAIRS = [([4, 5, 6], [4, 8]), ([7], [5, 6, 4, 4, 7]), ([4, 11, 10, 4, 9, 9], []), ([], [3, 3]), ([3, 8], [6, 5, 7])]
WITH_IMAGE = (0, 2, 3)  # which of the pairs have an image


def build() -> IndependentDescriptions:
    settings = IndependentSettings(embedding_dim=5, hidden_dim=6, readout_dim=4)
    model = (
        IndependentDescriptions(settings, ModelInputs(VOCAB, {"pooled": (IMAGE_DIM,)}, SOURCE_VOCAB)).double().eval()
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.6 * torch.randn_like(parameter))
    return model


def theta_of(model: IndependentDescriptions) -> dict[str, np.ndarray]:
    """Our weights by the oracle's names; the target-language model's read-out is the one it has."""
    ours = {name: value.detach().double().numpy() for name, value in model.named_parameters()}
    theta = {
        "E_x": ours["source.embedding.weight"],
        "E_y": ours["target.embedding.weight"],
        "W_v": ours["image.weight"],
        "b_v": ours["image.bias"],
        "W_init": ours["initial.weight"],
        "b_init": ours["initial.bias"],
        "L_s": ours["target.readout_hidden.weight"],
        "b_L": ours["target.readout_hidden.bias"],
        "L_w": ours["target.readout_word.weight"],
        "L_o": ours["target.readout.weight"],
        "b_o": ours["target.readout.bias"],
    }
    for language, name in (("source", "enc"), ("target", "rec")):
        cell = f"{language}.recurrent.cell"
        for row, gate in enumerate(("_r", "_z", "")):
            rows = np.s_[row * model.settings.hidden_dim : (row + 1) * model.settings.hidden_dim]
            theta[f"{name}.W{gate}"] = ours[f"{cell}.input.weight"][rows]
            theta[f"{name}.b{gate}"] = ours[f"{cell}.input.bias"][rows]
            theta[f"{name}.U{gate}"] = ours[f"{cell}.recurrent"][rows]
    return theta


@pytest.mark.parametrize(("dtype", "within"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_logits_of_every_word_equal_the_oracle(dtype, within) -> None:
    model = build().to(dtype)
    random = np.random.default_rng(1)
    vectors = [
        random.normal(size=IMAGE_DIM).astype(np.float16) if row in WITH_IMAGE else None for row in range(len(PAIRS))
    ]
    data = collate(
        [
            Example(str(row), target, source, None if vectors[row] is None else {"pooled": vectors[row]})
            for row, (source, target) in enumerate(PAIRS)
        ]
    )
    data = dataclasses.replace(data, image=data.image._replace(pooled=data.image.pooled.to(dtype)))
    with torch.no_grad():
        logits = model(data).logits
        probs = sentence_log_probs(model(data), data)
    for row, (source, target) in enumerate(PAIRS):
        signed = [SPECIAL_TOKENS.bos, *target, SPECIAL_TOKENS.eos]
        image_vector = None if vectors[row] is None else vectors[row].astype(np.float64)
        trace = oracle.independent_2015(theta_of(model), [SPECIAL_TOKENS.bos, *source], signed, image_vector)
        np.testing.assert_allclose(logits[row, : len(target) + 1].numpy(), trace.logits, rtol=within, atol=within)
        assert probs[row].item() == pytest.approx(oracle.sentence_log_prob(trace, signed), rel=10 * within)

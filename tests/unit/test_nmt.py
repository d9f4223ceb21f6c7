"""The decoders, and the translation models: gradients, missing images, dropout, initialisation."""

import dataclasses

import numpy as np
import pytest
import torch

from limner.data.examples import Example, collate
from limner.decoding.scoring import sentence_log_probs
from limner.layers.cells import CellSettings, CellState
from limner.layers.decoders import AttentionDecoder, ConditionalDecoder, DropoutMasks
from limner.models.nmt import NMT, NMTSettings
from limner.models.protocols import ModelInputs
from limner.runs.trained_model import transfer_weights

WORD, HIDDEN, SOURCE, SIZE, IMAGE = 2, 3, 4, 3, 2
SOURCE_MASK = torch.tensor([[True, True, True], [True, False, False]])
IMAGE_MASK = torch.tensor([[True] * 4, [False] * 4])  # the second example has no image


GRU = CellSettings(name="gru")


def randomised(module, scale=0.7):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) * scale)
    return module.double()


def all_steps(cell, words, hidden, source, image, steps=2, masks=None):
    """Compute the results of all steps as one vector."""
    to = cell.source_attention.annotate(source, SOURCE_MASK)
    image_annotations = None if image is None else cell.image_attention.annotate(image, IMAGE_MASK)
    result, state = [], CellState(hidden)
    for word in cell.words(words).unbind(1)[:steps]:
        step = cell(word, state, to, image_annotations, masks)
        state = step.state
        result += [part.flatten() for part in (state.hidden, *step[1:]) if part is not None]
    return torch.cat(result)


@pytest.mark.parametrize("kind", [ConditionalDecoder, AttentionDecoder])
def test_dropout_masks_apply_to_the_inputs_of_recurrent_products(kind):
    """A masked unit is not read, but the update gate preserves its value."""
    cell = randomised(kind(GRU, WORD, HIDDEN, SOURCE, SIZE, IMAGE))
    shapes = [(2, 1, WORD), (2, HIDDEN), (2, 3, SOURCE), (2, 4, IMAGE)]
    words, hidden, source, image = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    ones = torch.ones(2, HIDDEN, dtype=torch.float64)
    with torch.no_grad():
        free = all_steps(cell, words, hidden, source, image, 1)
        torch.testing.assert_close(all_steps(cell, words, hidden, source, image, 1, DropoutMasks(ones, ones)), free)
        for masks in (
            DropoutMasks(0 * ones, ones),
            *([DropoutMasks(ones, 0 * ones)] if kind is ConditionalDecoder else []),
        ):
            assert not torch.allclose(all_steps(cell, words, hidden, source, image, 1, masks), free)


# Models

VOCAB, SOURCE_VOCAB = 9, 8
FEATURE_SHAPES = {"pooled": (3,), "grid": (4, 3)}
SMALL = {"embedding_dim": 5, "hidden_dim": 6, "attention_dim": 7, "readout_dim": 8}
SOURCES, TARGETS = ([4, 5, 6, 7], [5], [6, 6, 4]), ([4, 5], [], [8, 7, 6, 5])
WITH_IMAGE = [
    {"image": ["attention"]},
    {"image": ["initial"]},
    {"image": ["prefix"]},
    {"image": ["prefix", "initial", "attention"], "initial_state": "first"},
    {"image": ["attention"], "decoder": "plain"},
    {"image": ["initial", "attention"], "decoder": "plain", "initial_state": "first"},
    {"image": ["prefix"], "decoder": "plain", "initial_state": "first"},
    {"image": ["attention"], "tie_embeddings": True, "readout_dim": 5},
]


def nmt(kinds=FEATURE_SHAPES, scale=0.6, **changes) -> NMT:
    settings = NMTSettings.model_validate({**SMALL, **changes})
    return randomised(NMT(settings, ModelInputs(VOCAB, kinds, SOURCE_VOCAB)), scale).eval()


def batch_of(images=(True, True, True), kinds=FEATURE_SHAPES):
    random = np.random.default_rng(0)
    examples = []
    for k, there in enumerate(images):
        features = {kind: random.normal(size=shape).astype(np.float16) for kind, shape in kinds.items()}
        examples.append(Example(str(k), TARGETS[k], SOURCES[k], features if there else None))
    batch = collate(examples)
    present, *shown = batch.image
    shown = [None if kind is None else kind.double() for kind in shown]
    return dataclasses.replace(batch, image=type(batch.image)(present, *shown))


@pytest.mark.parametrize("changes", WITH_IMAGE, ids=str)
def test_without_images_the_model_equals_the_text_only_model(changes):
    multimodal, text = nmt(**changes), nmt(**(changes | {"image": []}))
    assert transfer_weights(text, multimodal.state_dict()).new == ()
    without = batch_of((False, False, False))
    zeros = {kind: torch.zeros(3, *shape, dtype=torch.float64) for kind, shape in FEATURE_SHAPES.items()}
    zero_images = dataclasses.replace(without, image=without.image._replace(**zeros))  # as in a mixed batch
    expected = sentence_log_probs(text(without), without)
    for batch in (without, zero_images):
        torch.testing.assert_close(sentence_log_probs(multimodal(batch), batch), expected)
    shown = batch_of()
    assert not torch.allclose(sentence_log_probs(multimodal(shown), shown), expected)


@pytest.mark.parametrize("changes", [WITH_IMAGE[0], WITH_IMAGE[4]], ids=str)
def test_missing_image_gives_zero_attention_and_a_closed_gate(changes):
    model = nmt(**changes)
    output = model(batch_of((True, False, True)))
    sums = output.attention.sum(2)
    torch.testing.assert_close(sums[[0, 2]], torch.ones_like(sums[[0, 2]]))
    assert not output.attention[1].any()
    if output.gate is None:
        assert changes.get("decoder") == "plain"
    else:
        assert not output.gate[1].any()
        assert ((output.gate[[0, 2]] > 0) & (output.gate[[0, 2]] < 1)).all()
    nothing = model(batch_of((False, False, False)))
    assert (nothing.attention, nothing.gate) == (None, None)


def of_grid(model, batch, grid):
    """Logits of a batch with these image features."""
    image = batch.image._replace(grid=grid, pooled=None)
    return model(dataclasses.replace(batch, image=image))


@pytest.mark.parametrize("image", ["attention", "initial", "prefix"])
def test_zero_rows_of_region_features_are_no_regions(image):
    model, batch = nmt({"grid": FEATURE_SHAPES["grid"]}, image=[image]), batch_of((True, False, True))
    grid = batch.image.grid.clone()
    grid[:, 2:] = 0
    ours, expected = of_grid(model, batch, grid), of_grid(model, batch, grid[:, :2])
    torch.testing.assert_close(ours.logits, expected.logits)
    if image == "attention":
        assert not ours.attention[:, :, 2:].any()
        torch.testing.assert_close(ours.attention[:, :, :2], expected.attention)
        nothing = of_grid(model, batch, torch.zeros_like(grid))  # an image of zeros is one
        assert nothing.attention[0].all()
        assert nothing.gate[0].all()
        assert not nothing.gate[1].any()
    elif image == "prefix":
        assert not ours.alignment[:, :, 2:4].any()
        torch.testing.assert_close(ours.alignment[:, :, [0, 1, 4, 5, 6, 7]], expected.alignment)
    assert torch.isfinite(of_grid(model, batch, torch.zeros_like(grid)).logits).all()


def test_an_empty_source_sentence_gives_finite_logits_and_no_attention():
    model = nmt()
    batch = collate([Example("a", [4, 5], source=[]), Example("b", [4], source=[5, 6])])
    output = model(batch)
    assert torch.isfinite(output.logits).all()
    assert not output.alignment[0].any()
    alone = collate([Example("a", [4, 5], source=[])])
    torch.testing.assert_close(model(alone).logits[0], output.logits[0])
    output.logits.sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters() if parameter.grad is not None)


def test_whole_source_words_are_dropped():
    model = nmt(source_word_dropout=0.5, embedding_dim=16).train()
    read = []
    model.encoder.register_forward_pre_hook(lambda _, given: read.append(given[0] == 0))
    for _ in range(20):
        model(batch_of())
    dropped = torch.stack(read)
    assert torch.equal(dropped.all(-1), dropped.any(-1))
    words = dropped[:, torch.tensor([len(source) for source in SOURCES])[:, None] > torch.arange(4)]
    assert 0.3 < words.double().mean().item() < 0.7


def test_initial_weights_have_the_published_distribution():
    """Calixto et al. (2017), section 5: Gaussian, orthogonal where recurrent, biases of zero."""
    big = {"embedding_dim": 30, "hidden_dim": 40, "attention_dim": 30, "readout_dim": 30}
    for decoder, std in (("conditional", 0.01), ("plain", 0.05)):
        uses = {"decoder": decoder, "image": ["prefix", "initial", "attention"]}
        settings = NMTSettings.model_validate({**big, **uses} | ({} if std == 0.01 else {"initial_std": std}))
        model = NMT(settings, ModelInputs(200, {"pooled": (50,), "grid": (4, 50)}, 200))
        for name, weight in model.named_parameters():
            if "recurrent" in name:
                for gate in weight.detach().split(40):
                    torch.testing.assert_close(gate @ gate.t(), torch.eye(40), rtol=0, atol=1e-5)
            elif "bias" in name:
                assert not weight.any(), name
            else:
                assert weight.detach().std().item() == pytest.approx(std, rel=4 / weight.numel() ** 0.5), name

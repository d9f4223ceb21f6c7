"""Independent descriptions: losses of the two models, and the transferred state."""

import dataclasses

import numpy as np
import pytest
import torch

from limner.data.dataset import Examples
from limner.data.examples import Example, collate
from limner.decoding.settings import DecodingSettings
from limner.errors import SettingsError
from limner.features.store import FeatureStore
from limner.inference.generate import generate
from limner.models.independent_descriptions import IndependentDescriptions, IndependentSettings
from limner.models.protocols import ModelInputs
from limner.runs.recipe import Recipe
from limner.runs.trained_model import load_trained_model
from limner.text.vocab import SPECIAL_TOKENS
from limner.training.loop import train
from limner.training.losses import word_loss

SOURCE_VOCAB, VOCAB, FEATURES = 10, 8, 3
SIZES = {"embedding_dim": 5, "hidden_dim": 6, "readout_dim": 4}
PAIRS = [([4, 5, 6], [4]), ([7], [5, 6, 4]), ([], [7, 7])]


def build(**changes):
    """Build in training mode, without dropout."""
    settings = IndependentSettings(**SIZES, **{"input_dropout": 0.0, **changes})
    model = IndependentDescriptions(settings, ModelInputs(VOCAB, {"pooled": (FEATURES,)}, SOURCE_VOCAB)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def batch(pairs=PAIRS, images=True):
    features = [{"pooled": np.full(FEATURES, row + 1, dtype=np.float16)} for row in range(len(pairs))]
    made = collate(
        [
            Example(str(row), target, source, features[row] if images else None)
            for row, (source, target) in enumerate(pairs)
        ]
    )
    vector = made.image.pooled
    return dataclasses.replace(made, image=made.image._replace(pooled=None if vector is None else vector.double()))


def test_the_auxiliary_loss_is_the_mean_over_the_source_tokens():
    """Each token and </s>, given the tokens before it and the image, times the weight of the loss."""
    model, data = build(source_weight=0.5), batch()
    source, losses = model.source, []
    with torch.no_grad():
        for row, (words, _) in enumerate(PAIRS):
            state = source.recurrent.start(1)
            for word, following in zip([SPECIAL_TOKENS.bos, *words], [*words, SPECIAL_TOKENS.eos], strict=True):
                embedded = source.embedding(torch.tensor([word]))
                read = embedded + model.image(data.image.pooled[row]) if word == SPECIAL_TOKENS.bos else embedded
                state = source.recurrent.step(source.recurrent.cell.project(read), state)
                losses.append(-source.read_out(state.state.hidden, embedded).log_softmax(1)[0, following].item())
    assert len(losses) == 4 + 2 + 1
    assert model(data).auxiliary_loss.value.item() == pytest.approx(0.5 * np.mean(losses))
    assert model.eval()(data).auxiliary_loss is None


@pytest.mark.parametrize("transfer", ["fixed", "joint"])
def test_the_source_model_is_trained_on_translations_only_if_configured(transfer):
    model, data = build(transfer=transfer), batch()
    word_loss(model(data)._replace(auxiliary_loss=None), data).backward()
    reached = {name for name, weight in model.named_parameters() if weight.grad is not None and weight.grad.any()}
    assert {"initial.weight", "target.recurrent.cell.recurrent"} <= reached
    of_source = {"source.recurrent.cell.recurrent", "source.embedding.weight", "image.weight"}
    assert transfer == "fixed" or of_source <= reached
    assert transfer == "joint" or not any(name.startswith(("source.", "image.")) for name in reached)


def test_the_two_models_are_trained_independently_by_default():
    """The gradient of the source model does not depend on the translations."""
    grads = []
    for targets in ([4], [5, 6, 4], [7, 7]), ([6, 6], [], [4]):
        torch.manual_seed(3)
        model = build()
        data = batch([(source, target) for (source, _), target in zip(PAIRS, targets, strict=True)])
        word_loss(model(data), data).backward()
        grads.append([weight.grad for weight in (*model.source.parameters(), *model.image.parameters())])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_a_missing_image_leaves_its_term_out_with_the_bias():
    model = build().eval()
    without = model(batch(images=False)).logits
    with torch.no_grad():
        model.image.weight.zero_()
        model.image.bias.zero_()
    torch.testing.assert_close(model(batch()).logits, without)


def test_features_and_a_training_objective_are_required():
    with pytest.raises(SettingsError, match=r"features\.tables: this model uses images"):
        IndependentDescriptions(IndependentSettings(**SIZES), ModelInputs(VOCAB, {}, SOURCE_VOCAB))
    with pytest.raises(SettingsError, match=r"source_weight: expected a number above 0"):
        IndependentSettings.parse({"source_weight": 0})


def test_a_trained_model_translates_and_round_trips(tiny, tmp_path):
    """Train from a recipe and generate the German sentence of the tiny collection."""
    recipe = Recipe.parse(
        {
            "data": {"lang": "de", "source_lang": "en"},
            "features": {"tables": ["colour"]},
            "model": {"name": "independent", **SIZES},
            "training": {
                "epochs": 10,
                "validate_every": 10,
                "batch_size": 8,
                "optimizer": {"name": "adamw", "lr": 0.03},
                "precision": "fp32",
            },
        }
    )
    learned = load_trained_model(train(recipe, tiny, tmp_path / "run"))
    images = FeatureStore.open(tiny, ["colour"], 64)
    examples = Examples.of_split(tiny, "test", learned.target, images, source=learned.source, max_tokens=80)
    translations = generate([learned], examples.generation_inputs(), images, DecodingSettings(max_length=8))
    assert [learned.tokenizer.decode(hypotheses[0].tokens) for hypotheses in translations] == ["eine wand"] * 8

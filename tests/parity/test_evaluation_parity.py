"""Perplexity, search and shortlists of Kiros et al. (2014), sections 6 and 7, against the oracle's definitions."""

import numpy as np
import oracle_kiros as oracle
import pytest
import torch

from limner.data.dataset import Examples
from limner.data.examples import Item, ItemSentence
from limner.data.languages import TargetLanguage
from limner.decoding.scoring import score_examples
from limner.evaluation.retrieval import RetrievalSettings, evaluate_retrieval
from limner.models.log_bilinear import LBL, LBLSettings
from limner.models.protocols import ModelInputs
from limner.runs.recipe import Recipe
from limner.runs.trained_model import ModelConfig, TrainedModel
from limner.text.tokenizer import Tokenizer
from limner.text.vocab import SPECIAL_TOKENS
from limner.text.words import TextSettings

WORD, CONTEXT, IMAGE_DIM, COUNT, SHORTLIST = 5, 3, 4, 7, 3
WORDS = ["red", "green", "blue", "white", "wall", "floor", "sky"]


class SourceLanguage:
    """Images by the id of their item."""

    def __init__(self, images):
        self.images = images

    def take(self, items):
        return [{"pooled": self.images[item.id]} for item in items]


@pytest.fixture(scope="module")
def world():
    """Seven images with one or two sentences each, a model with random weights, and the oracle of both."""
    random = np.random.default_rng(0)
    images = {str(row): random.normal(size=IMAGE_DIM).astype(np.float16) for row in range(COUNT)}
    items = [
        Item(
            str(row),
            "test",
            image=f"{row}.png",
            sentences=tuple(
                ItemSentence("en", " ".join(random.choice(WORDS, size=random.integers(1, 10))))
                for _ in range(1 + row % 2)
            ),
        )
        for row in range(COUNT)
    ]
    tokenizer = Tokenizer.train(WORDS, TextSettings())
    torch.manual_seed(0)
    settings = LBLSettings(word_dim=WORD, context=CONTEXT, init_std=0.7)
    model = LBL(settings, ModelInputs(len(tokenizer), {"pooled": (IMAGE_DIM,)})).eval()
    weights = {name: value.detach().double().numpy() for name, value in model.named_parameters()}
    per_word = np.split(weights["context.weight"], CONTEXT, axis=1)

    def conditional(context, x):
        return oracle.mlblb_distribution(
            weights["words"], per_word, weights["image.weight"], weights["bias"], context, x
        )

    recipe = Recipe.parse({"model": settings.model_dump(), "training": {"precision": "fp32"}})
    checkpoint = TrainedModel(
        model, tokenizer, ModelConfig(recipe=recipe.model_dump(mode="json"), vocab_size=1), recipe
    )
    examples = Examples(items, TargetLanguage("en", tokenizer), SourceLanguage(images), max_tokens=80)
    return checkpoint, examples, {key: value.astype(float) for key, value in images.items()}, conditional


def signed(examples):
    return [[*target, SPECIAL_TOKENS.eos] for target in examples.targets]


@pytest.mark.parametrize("skip", [0, 2, 3])
def test_perplexity_from_word_c_plus_1(world, skip) -> None:
    model, examples, images, conditional = world
    ours = score_examples(model.model, examples, skip_words=skip).perplexity.value
    descriptions = [
        (words, oracle.given(conditional, images[examples.items[owner].id]))
        for words, owner in zip(signed(examples), examples.owners, strict=True)
    ]
    shortest = skip + 3 + 1 if skip else 1  # the end token is not a word of a description
    expected = oracle.perplexity_from_word(descriptions, CONTEXT, SPECIAL_TOKENS.bos, skip, shortest)
    assert ours == pytest.approx(expected, rel=1e-5)


def test_ranks_and_areas_equal_their_definitions(world) -> None:
    model, examples, images, conditional = world
    random_images = [images[item.id] for item in examples.items]
    mean = np.mean(random_images, axis=0)
    sentences, owners = signed(examples), examples.owners
    to_image = []
    for words, owner in zip(sentences, owners, strict=True):
        scores = oracle.text_to_image_scores(words, random_images, conditional, CONTEXT, SPECIAL_TOKENS.bos)
        to_image.append(1 + sum(score < scores[owner] for score in scores))
    to_text, listed = [], []
    for row, x in enumerate(random_images):
        near = oracle.shortlist(x, random_images, SHORTLIST)
        result = [k for k, owner in enumerate(owners) if owner in near]
        ratios = dict(
            zip(
                result,
                oracle.image_to_text_scores(
                    x, mean, [sentences[k] for k in result], conditional, CONTEXT, SPECIAL_TOKENS.bos
                ),
                strict=True,
            )
        )
        best = min(ratio for k, ratio in ratios.items() if owners[k] == row)
        to_text.append(1 + sum(ratio < best for ratio in ratios.values()))
        listed.append(len(result))

    class Nothing:
        def absolute_image_path(self, item):
            return None

    scores, shown = evaluate_retrieval(
        model,
        examples,
        Nothing(),
        [],
        RetrievalSettings(shortlist=SHORTLIST, budget=1 << 20, seed=0),
        mean={"pooled": mean.astype(np.float32)},
    )
    ours = {score.name: score.value for score in scores}
    assert shown.shortlist == SHORTLIST
    assert {curve[-1] for curve in shown.match_curves.model_dump().values()} == {(1.0, 1.0)}
    area = 100 * np.mean([(COUNT - rank + 0.5) / COUNT for rank in to_image])
    assert ours["text_to_image_match_area"] == pytest.approx(area)
    area = 100 * np.mean([(n - rank + 0.5) / n for rank, n in zip(to_text, listed, strict=True)])
    assert ours["image_to_text_match_area"] == pytest.approx(area)
    assert set(to_image) != {1} and set(to_text) != {1}  # ranks are not all 1

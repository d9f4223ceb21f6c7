"""Toy translation task: two languages learned in a second, and one word whose translation needs the image."""

import itertools
from pathlib import Path

import numpy as np
import torch
from known_backbone import KnownBackbone
from PIL import Image

from limner.data.collection import Collection, write_items
from limner.data.dataset import Examples
from limner.data.examples import Item, ItemSentence
from limner.data.languages import SourceLanguage, TargetLanguage
from limner.features.extract import extract
from limner.features.store import FeatureStore
from limner.models import ModelInputs, build_model
from limner.runs.recipe import Recipe
from limner.runs.trained_model import ModelConfig, TrainedModel, feature_shapes, save_trained_model
from limner.text.tokenizer import Tokenizer

WORDS = {"eins": "one", "zwei": "two", "drei": "three"}
BATS = {"red": "club", "green": "flyer"}
"""Translation of 'bat' by the colour of the image."""
COLOURS = {"red": (250, 20, 20), "green": (20, 250, 20)}


class GridBackbone(KnownBackbone):
    """The mean colour of each quarter, from 0 to 1."""

    def __init__(self):
        super().__init__({"name": "quarters", "kind": "grid", "shape": (4, 3), "grid_size": (2, 2)})

    def __call__(self, pixels):
        quarters = pixels[:, 0].reshape(len(pixels), 2, 2, 2, 2, 3).mean((2, 4)) / 255
        return {"grid": quarters.reshape(len(pixels), 4, 3).astype(np.float16)}


def text_collection(folder: Path) -> Collection:
    """All German and English sentences of one or two words, without images."""
    pairs = [words for length in (1, 2) for words in itertools.product(WORDS, repeat=length)]
    items = [
        Item(
            f"pair{row}",
            "train",
            sentences=(ItemSentence("de", " ".join(words)), ItemSentence("en", " ".join(map(WORDS.get, words)))),
        )
        for row, words in enumerate(pairs)
    ]
    write_items(folder, items)
    return Collection.open(folder)


def image_collection(folder: Path) -> Collection:
    """Sentences with images that determine the sense of 'bat', and features of the images."""
    folder.mkdir(parents=True, exist_ok=True)
    items = []
    for colour, bat in BATS.items():
        Image.new("RGB", (16, 16), COLOURS[colour]).save(folder / f"{colour}.png")
        for row, (german, english) in enumerate([("bat", bat), ("eins bat", f"one {bat}"), ("bat zwei", f"{bat} two")]):
            pair = (ItemSentence("de", german), ItemSentence("en", english))
            items.append(Item(f"{colour}{row}", "train", image=f"{colour}.png", sentences=pair))
    write_items(folder, items)
    extract(Collection.open(folder), GridBackbone())
    return Collection.open(folder)


def learn(
    collection: Collection,
    run: Path,
    *,
    image: tuple[str, ...] = (),
    level: str = "word",
    steps: int = 80,
    shared: bool = False,
) -> Path:
    """Train a model until it reproduces its collection, translating from 'de' to 'en'; return its run.

    With `shared`, both languages have one vocabulary and one table of embeddings, and the encoder has two layers.
    """
    sizes = {"embedding_dim": 12, "hidden_dim": 16, "attention_dim": 12, "readout_dim": 12}
    strong = {"share_embeddings": True, "tie_embeddings": True, "encoder_layers": 2} if shared else {}
    recipe = Recipe.parse(
        {
            "data": {"lang": "en", "source_lang": "de", "test": "train", "joint_vocabulary": shared},
            "text": {"tokenise": "space", "level": level, "max_size": 40},
            "features": {"tables": ["quarters"] if image else []},
            "model": {"name": "nmt", "image": list(image), **sizes, **strong},
            "decoding": {"max_length": 12},
        }
    )
    texts = {lang: [text for item in collection.items() for text in item.texts(lang)] for lang in ("de", "en")}
    source_tokenizer, tokenizer = Tokenizer.train_pair(
        texts["de"], texts["en"], recipe.source_text, recipe.text, joint=shared
    )
    feature_store = FeatureStore.open(collection, recipe.features.tables, 8) if image else None
    features = tuple(table.spec for table in feature_store.tables) if feature_store else ()
    torch.manual_seed(1)
    model = build_model(recipe.model, ModelInputs(len(tokenizer), feature_shapes(features), len(source_tokenizer)))
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.2 * torch.randn_like(weight)  # the published initialisation near zero trains slowly
    examples = Examples.of_split(
        collection,
        "train",
        TargetLanguage("en", tokenizer),
        feature_store,
        source=SourceLanguage("de", source_tokenizer),
        max_tokens=80,
    )
    batch = examples.batch(range(len(examples)))
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(
            model(batch).logits[batch.target_mask], batch.target_out[batch.target_mask]
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    config = ModelConfig(
        recipe=recipe.model_dump(mode="json"),
        features=features,
        vocab_size=len(tokenizer),
        source_vocab_size=len(source_tokenizer),
    )
    save_trained_model(run, TrainedModel(model.eval(), tokenizer, config, recipe, source_tokenizer))
    return run

"""The model card of a built-in captioner, with the figures of its evaluations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from limner.data.collection import Collection
from limner.runs.concepts import FILE as CONCEPTS
from limner.runs.trained_model import read_config

LANGUAGES = {
    "en": ("English", "Flickr8k", "lower-case words without punctuation"),
    "de": ("German", "the German descriptions of Multi30k, task 2 (Elliott et al., 2016)", "words without punctuation"),
    "zh": ("Chinese", "Flickr8k-CN (Li et al., 2016)", "characters without punctuation"),
}
"""Name of each language, its corpus, and the tokens of its metrics."""
TAGS = "Things in the image are named by the concepts in concepts.json. "
UNSURE = "; the command prints `not sure` for most of them"
"""What is true of captioners with concepts."""
METRICS = ("bleu1", "bleu2", "bleu3", "bleu4", "cider")


def write_card(folder: Path, lang: str, collection: Path, scores: Mapping[str, Mapping[str, float]]) -> None:
    """Write README.md of a packed model.

    Args:
        folder: run directory in the package.
        lang: language code.
        collection: collection that the model was trained on.
        scores: values of `METRICS` by split.
    """
    language, corpus, tokens = LANGUAGES[lang]
    recipe = read_config(folder)[1]
    items = [item for item in Collection.open(collection).items() if item.split == recipe.data.train]
    texts = [len(item.texts(lang)) for item in items]
    training = recipe.training
    objective = (
        "self-critical training with CIDEr as the reward, on the photographs and their mirror images"
        if training.objective == "scst"
        else "likelihood"
    )
    rows = [
        f"| {split} | {' | '.join(f'{values[name]:.1f}' for name in METRICS)} |" for split, values in scores.items()
    ]
    has_concepts = (folder / CONCEPTS).exists()
    card = (Path(__file__).with_name("card.md")).read_text(encoding="utf-8")
    filled = card.format(
        lang=lang,
        language=language,
        corpus=corpus,
        tokens=tokens,
        sentences=sum(texts),
        images=sum(count > 0 for count in texts),
        training=f"Last stage: {objective}, {training.epochs} epochs; weights of the best validation {training.metric}",
        beam_size=recipe.decoding.beam_size,
        length_penalty=recipe.decoding.length_penalty,
        scores="\n".join(rows),
        tags=TAGS if has_concepts else "",
        unsure=UNSURE if has_concepts else "",
    )
    (folder / "README.md").write_text(filled, encoding="utf-8")

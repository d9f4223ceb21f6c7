"""A score of a caption without references: log P(w|I) - log P(w).

It is the pointwise mutual information of the caption w and the image I under a captioning model, the numerator and
denominator of eq. 7 of Mao et al. (2015), with the purpose of CLIPScore (Hessel et al., 2021): a caption that is as
probable without the image as with it scores 0.
"""

from __future__ import annotations

from limner.data.collection import Collection
from limner.data.examples import Item
from limner.errors import CollectionError
from limner.features.store import FeatureStore
from limner.retrieval.marginal import MARGINAL_IMAGES, MARGINAL_SEED, sample_items
from limner.runs.trained_model import TrainedModel, model_fingerprint

DIGITS = 12
"""Number of hexadecimal digits of a digest in a signature."""


def marginal_items(
    model: TrainedModel, collection: Collection, features: FeatureStore, count: int = MARGINAL_IMAGES
) -> list[Item]:
    """Draw the training images over which P(w) is the mean of P(w|I').

    Raises:
        CollectionError: the training split has no image with features.
    """
    split = model.recipe.data.train
    items = sample_items(collection, split, features, count)
    if not items:
        raise CollectionError(
            f"{collection.path}: expected images with features in split '{split}' to estimate log P(w), found none; "
            "compute them with 'limner features'"
        )
    return items


def log_ratio_signature(model: TrainedModel, collection: Collection, others: int, precision: str) -> str:
    """Return all that affects the score: the digest of the model, the images of the marginal and the arithmetic."""
    return (
        f"score:log-ratio|model:{model_fingerprint([model])[:DIGITS]}|marginal:{others}:{model.recipe.data.train}|"
        f"seed:{MARGINAL_SEED}|collection:{collection.fingerprint()[:DIGITS]}|{precision}"
    )

"""Folds of a cross-validation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from math import floor
from random import Random

from limner.data.examples import Item
from limner.errors import SettingsError

TRAIN, VALIDATION, TEST = "train", "val", "test"


def assign_folds(items: Sequence[Item], folds: int, validation: float, seed: int) -> list[dict[str, str]]:
    """Assign items to training, validation and test in every fold, each label in equal shares.

    The test parts of the folds are disjoint and cover all items. The validation part of a fold is drawn from its
    training part at even distances: where the multiples of the share reach the next integer, one position later in each
    fold.

    Args:
        items: items with or without labels.
        folds: number K of folds.
        validation: share of the training part that is used for validation.
        seed: seed of the assignment.

    Returns:
        For each fold the split of every item, `train`, `val` or `test`, by item id.

    Raises:
        SettingsError: there are fewer items than folds, or a fold without validation or training items.
    """
    by_label: defaultdict[str, list[str]] = defaultdict(list)
    for item in items:
        by_label[item.label or ""].append(item.id)
    ordered: list[str] = []
    for label in sorted(by_label):
        ids = sorted(by_label[label])
        Random(f"{seed}/{label}").shuffle(ids)
        ordered += ids  # labels one after the other: every K-th item is a share of each label
    share = Fraction(str(validation))  # exact: 0.29 * 100 is less than 29 in floating point
    result: list[dict[str, str]] = []
    for fold in range(folds):
        rest = [id for position, id in enumerate(ordered) if position % folds != fold]
        splits = {
            id: VALIDATION if floor((position - fold) * share) > floor((position - fold - 1) * share) else TRAIN
            for position, id in enumerate(rest)
        }
        splits |= dict.fromkeys(ordered[fold::folds], TEST)
        if len(set(splits.values())) < 3:
            raise SettingsError(f"{folds} folds need more items, found {len(items)}; lower --folds")
        result.append(splits)
    return result

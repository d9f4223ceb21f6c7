"""Reproduction of tables from recipes of the toy translation task."""

import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

from limner.apps.reproduce import ReproductionSettings, reproduce_table

NMT = """
    data: {lang: en, source_lang: de}
    text: {tokenise: space}
    model: {name: nmt, embedding_dim: 12, hidden_dim: 16, attention_dim: 12, readout_dim: 12}
    training: {epochs: 1, batch_size: 4, optimizer: {name: adam, lr: 0.03}, precision: fp32, metrics: []}
    decoding: {max_length: 6}
"""


def run_table(table, collection, out, **settings):
    return reproduce_table(table, collection, out, settings=ReproductionSettings.parse(settings))


@contextmanager
def recipe_folder(folder, recipes):
    """Use a folder of recipes that has those of Calixto et al. (2017), and the given ones in the folder `toy`."""
    own = Path(__file__).parents[2] / "recipes"
    shutil.copytree(own / "calixto2017", folder / "calixto2017")
    (folder / "toy").mkdir()
    for name, text in recipes.items():
        (folder / "toy" / f"{name}.yaml").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("limner.runs.recipe.recipe_folder", lambda: folder)
        yield

"""Maps of words: selection, projections, clusters, files and the section of the report."""

import sys

import numpy as np
import pytest
import torch
from PIL import Image

from limner import report
from limner.errors import MissingExtraError, RunError, SettingsError
from limner.models import ModelInputs, build_model
from limner.report import word_map
from limner.report.word_map import CLUSTERS, NEIGHBOURS, map_words, save_word_map
from limner.runs.trained_model import TrainedModel, feature_shapes, load_trained_model, save_trained_model
from limner.text.tokenizer import Tokenizer
from limner.text.words import TextSettings

FIELDS = {
    "animals": "dog cat horse cow sheep bird",
    "colours": "red green blue white black yellow",
    "numbers": "two three four five six seven",
    "verbs": "running jumping sitting standing walking riding",
    "places": "beach street field park city forest",
    "clothes": "shirt hat coat dress shoes jacket",
}
WORDS = {word: row for row, words in enumerate(FIELDS.values()) for word in words.split()}


class KnownVectors(torch.nn.Module):
    """Vectors of the words of a field form a cluster; other words are at the origin."""

    def __init__(self, entries, dim=10):
        super().__init__()
        random = np.random.default_rng(3)
        centres = 10 * np.eye(CLUSTERS, dim)
        rows = [centres[WORDS[entry.strip("▁")]] if entry.strip("▁") in WORDS else np.zeros(dim) for entry in entries]
        self.vectors = torch.from_numpy(np.array(rows) + random.normal(size=(len(rows), dim))).float()

    def word_vectors(self):
        return self.vectors


def sentences():
    """Words earlier in FIELDS are more frequent; 'a' and the comma are the most frequent."""
    for position, word in enumerate(WORDS):
        yield from [f"a {word} , 100"] * (len(WORDS) - position)


@pytest.fixture
def known(trained_on_colours):
    """A trained model with known word vectors."""
    tokenizer = Tokenizer.train(sentences(), TextSettings(tokenise="space"))
    return load_trained_model(trained_on_colours)._replace(model=KnownVectors(tokenizer.entries), tokenizer=tokenizer)


@pytest.fixture(scope="module")
def wordy(trained_on_colours, tmp_path_factory):
    """A saved, untrained model with enough words for a map."""
    small = load_trained_model(trained_on_colours)
    tokenizer = Tokenizer.train(sentences(), TextSettings(tokenise="space"))
    model = build_model(small.recipe.model, ModelInputs(len(tokenizer), feature_shapes(small.config.features)))
    folder = tmp_path_factory.mktemp("wordy") / "run"
    config = small.config.model_copy(update={"vocab_size": len(tokenizer)})
    save_trained_model(folder, TrainedModel(model, tokenizer, config, small.recipe))
    return folder


def test_the_most_frequent_words_without_punctuation_numbers_and_short_words(known):
    assert map_words(known).words == tuple(WORDS)
    assert map_words(known, count=20).words == tuple(WORDS)[:20]


def test_short_words_of_other_scripts_are_included(trained_on_colours):
    texts = ["und ist を 犬 да ♪ x1 'n' " + " ".join(WORDS)]
    tokenizer = Tokenizer.train(texts, TextSettings(tokenise="space"))
    labels = word_map._labels(tokenizer, 100)
    assert set(labels.values()) == {"und", "ist", "を", "犬", "да", *WORDS}
    assert [tokenizer.entries[row] for row in labels] == list(labels.values())


def test_subwords_that_start_a_word_are_included(known):
    texts = [" ".join(WORDS)] * 3
    tokenizer = Tokenizer.train(texts, TextSettings(tokenise="space", level="bpe", max_size=400))
    drawn = map_words(known._replace(tokenizer=tokenizer, model=KnownVectors(tokenizer.entries)))
    assert set(WORDS) <= set(drawn.words)
    assert not [word for word in drawn.words if "▁" in word]
    assert not [word for row in drawn.neighbours for word in (row.word, *row.nearest) if "▁" in word]


def test_clusters_are_numbered_by_their_most_frequent_word(known):
    assert map_words(known).clusters == tuple(WORDS.values())


def test_neighbours_are_words_of_the_same_field(known):
    drawn = map_words(known)
    firsts = [words.split()[0] for words in FIELDS.values()]
    assert [row.word for row in drawn.neighbours if row.word in firsts] == firsts
    assert CLUSTERS <= len(drawn.neighbours) <= 2 * CLUSTERS
    for row in drawn.neighbours:
        assert row.cluster == WORDS[row.word]
        assert len(row.nearest) == NEIGHBOURS
        assert {WORDS[word] for word in row.nearest[:5]} == {row.cluster}


def test_the_central_word_of_a_cluster_is_nearest_to_its_mean():
    line = np.array([[0.0], [4.0], [5.0], [9.0]])
    vectors = np.concatenate([line + 100 * group for group in range(CLUSTERS)])
    groups = np.repeat(np.arange(CLUSTERS), 4)
    vectors[5] = 104.6  # the mean of cluster 1 is 104.65, nearest to its second word
    rows = word_map._representatives(vectors, groups)
    assert rows == [0, 1, 4, 5, *(4 * group + place for group in range(2, CLUSTERS) for place in (0, 1))]


def test_pca_projects_on_the_first_singular_vectors(known):
    drawn = map_words(known)
    rows = [known.tokenizer.entries.index(word) for word in drawn.words]
    vectors = known.model.vectors.double().numpy()[rows]
    u, s, _ = np.linalg.svd(vectors - vectors.mean(0), full_matrices=False)
    np.testing.assert_allclose(np.abs(drawn.positions["pca"]), np.abs(u[:, :2] * s[:2]), atol=1e-9)


def test_tsne_keeps_fields_together_and_is_reproducible(known):
    drawn = map_words(known, seed=1)
    positions, groups = drawn.positions["tsne"], np.array(drawn.clusters)
    distances = np.linalg.norm(positions[:, None] - positions, axis=2)
    np.fill_diagonal(distances, np.inf)
    assert (groups[distances.argmin(1)] == groups).all()
    spread = positions.std(0)
    assert spread[0] >= spread[1]
    np.testing.assert_array_equal(map_words(known, seed=1).positions["tsne"], positions)


def test_a_map_needs_word_vectors_and_enough_words(known, trained_on_colours):
    with pytest.raises(SettingsError, match="'mrnn' has no word vectors; name a run of a model that has them"):
        map_words(known._replace(model=torch.nn.Linear(1, 1)))
    with pytest.raises(SettingsError, match="expected 12 or more words"):
        map_words(known, count=11)


def test_without_scikit_learn_the_error_names_the_extra(known, wordy, monkeypatch, tmp_path, caplog):
    for name in ("cluster", "decomposition", "manifold"):
        monkeypatch.setitem(sys.modules, f"sklearn.{name}", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'limner\[words\]'"):
        map_words(known)
    caplog.set_level("INFO", logger="limner.report")
    text = report.write_report(wordy, tmp_path / "r.html").read_text(encoding="utf-8")
    assert "Nearest words" not in text
    assert [record.message for record in caplog.records if "limner[words]" in record.message]


@pytest.mark.parametrize("method", ["tsne", "pca"])
def test_a_map_is_written_as_png(wordy, tmp_path, method):
    out = save_word_map(wordy, tmp_path / "maps" / "words.png", method=method)
    with Image.open(out) as image:
        pixels = np.asarray(image.convert("RGB"))
    assert pixels[0, 0].tolist() == [255, 255, 255]
    assert pixels.std() > 1
    assert [path.name for path in out.parent.iterdir()] == ["words.png"]


def test_a_map_is_written_as_svg(wordy, tmp_path):
    assert "<svg" in save_word_map(wordy, tmp_path / "words.SVG").read_text(encoding="utf-8")


def test_another_suffix_or_no_model_writes_nothing(wordy, tmp_path):
    with pytest.raises(SettingsError, match=r"words\.gif: .*\.png or \.svg"):
        save_word_map(wordy, tmp_path / "words.gif")
    with pytest.raises(RunError, match="absent: no such run directory"):
        save_word_map(tmp_path / "absent", tmp_path / "words.png")
    assert list(tmp_path.iterdir()) == []


def test_the_report_contains_the_maps(wordy, tmp_path):
    text = report.write_report(wordy, tmp_path / "r.html").read_text(encoding="utf-8")
    assert 'href="#words"' in text and "Nearest words" in text
    assert text.count("<svg") == 2
    assert "36 most frequent words" in text
    assert len(text) < 200_000

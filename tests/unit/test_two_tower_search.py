"""Two-tower models: training, evaluation, and candidates of a search by the nearest vectors."""

from types import SimpleNamespace

import pytest
import torch

import limner
from interrupted import assert_equal_weights, resumed
from limner.data.collection import Collection, write_items
from limner.data.examples import Example, Item, ItemSentence, collate
from limner.errors import RunError, SearchIndexError, SettingsError
from limner.evaluation.evaluate import evaluate
from limner.retrieval.index import embeddings
from limner.retrieval.index.protocol import SearchOptions
from limner.runs.recipe import Recipe
from limner.runs.trained_model import load_trained_model
from limner.training.loop import train
from limner.training.matching import Matching

QUERY = "a red wall"


@pytest.fixture(scope="module")
def captioner(tiny, recipe_of, tmp_path_factory):
    """A trained m-RNN."""
    return train(recipe_of("colour", epochs=2, validate_every=2), tiny, tmp_path_factory.mktemp("captioner") / "mrnn")


def recipe(recipe_of, epochs=4, **matching):
    values = recipe_of("colour", epochs=epochs, validate_every=2).model_dump(mode="json")
    values["model"] = {"name": "two_tower", "word_dim": 8, "hidden_dim": 8, "joint_dim": 8}
    values["training"] |= {"metric": "recall_sum", "metrics": ["recall_sum"], "batch_size": 8, "matching": matching}
    values["training"]["optimizer"] = {"name": "adamw", "lr": 0.01}
    return Recipe.parse(values)


@pytest.fixture(scope="module")
def tower(tiny, recipe_of, tmp_path_factory):
    """A trained two-tower model."""
    return train(recipe(recipe_of), tiny, tmp_path_factory.mktemp("tower") / "tower")


def test_an_interrupted_training_ends_with_the_same_weights(tiny, recipe_of, tower, tmp_path):
    assert_equal_weights(resumed(9, recipe(recipe_of), tiny, tmp_path / "run"), tower)


def test_items_without_an_image_train_by_their_paraphrases(own_tiny, recipe_of, tmp_path):
    """No sentence of an image has these words, so that only the loss of paraphrases brings the pairs together."""
    pairs = [(f"apple{n}", f"pear{n}") for n in range(8)]
    sentences = [tuple(ItemSentence("en", text) for text in pair) for pair in pairs]
    write_items(own_tiny.path, [Item(f"text-{n}", "train", sentences=texts) for n, texts in enumerate(sentences)])
    collection, gaps = Collection.open(own_tiny.path), []
    for weight in (0.0, 4.0):
        settings = recipe(recipe_of, epochs=12, negatives="softmax", paraphrases=weight)
        trained = load_trained_model(train(settings, collection, tmp_path / str(weight)))
        batch = collate(
            [Example(text, trained.tokenizer.encode(text)) for column in zip(*pairs, strict=True) for text in column]
        )
        with torch.inference_mode():
            vectors = trained.model.sentence_vector(batch)
        cosines = vectors[:8] @ vectors[8:].t()
        gaps.append(float(cosines.diagonal().mean() - cosines.mean()))
    assert gaps[1] > 0.1 and abs(gaps[0]) < 0.05


@pytest.mark.parametrize(("items", "sizes"), [(8, [4, 4]), (5, [5]), (9, [4, 5]), (6, [4, 2]), (1, [1])])
def test_no_image_is_alone_in_a_batch_where_there_are_others(items, sizes):
    settings, owners = SimpleNamespace(matching=None, seed=1, batch_size=4), [row // 2 for row in range(2 * items)]
    data, trained = SimpleNamespace(owners=owners), SimpleNamespace(model=None)
    objective = Matching(SimpleNamespace(settings=settings, training_set=data, trained=trained))
    batches = objective.epoch_batches(0)
    assert [[len(rows), len({owners[row] for row in rows})] for rows in batches] == [[2 * n, n] for n in sizes]
    assert sorted(row for rows in batches for row in rows) == list(range(2 * items))
    assert len(batches) == 1 or objective.epoch_batches(1) != batches


def test_evaluation_ranks_and_decodes_nothing(tower, tiny):
    evaluation = evaluate([load_trained_model(tower)], tiny)
    scores = {score.name: score for score in evaluation.scores}
    assert {"text_to_image_r1", "text_to_image_median_rank", "image_to_text_r10"} <= set(scores)
    assert not {"perplexity", "bleu4"} & set(scores)
    assert "score:cosine" in scores["image_to_text_r1"].signature


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metric": "perplexity"}, "'perplexity' does not fit model 'two_tower', which ranks images and sentences"),
        ({"metrics": ["bleu4"]}, "expected recall_sum"),
    ],
)
def test_settings_that_do_not_fit(changes, message, tiny, recipe_of, tmp_path):
    values = recipe(recipe_of).model_dump(mode="json")
    values["training"] |= changes
    with pytest.raises(SettingsError, match=message):
        train(Recipe.parse(values), tiny, tmp_path / "run")
    with pytest.raises(SettingsError, match="'recall_sum' does not fit model 'mrnn', which generates sentences"):
        train(recipe_of("colour", metric="recall_sum"), tiny, tmp_path / "run")


def test_it_captions_nothing(tower):
    with pytest.raises(RunError, match=r"expected a model that generates sentences, got 'two_tower'"):
        limner.load(tower, encode_images=False)


def test_candidates_are_the_nearest_and_their_scores_are_exact(captioner, tower, own_tiny):
    retriever = limner.Retriever.load(captioner, encode_images=False)
    every = {one.id: one.score for one in retriever.search_images(QUERY, own_tiny, count=48).results}
    cosines = limner.Retriever.load(tower, encode_images=False).search_images(QUERY, own_tiny, count=12).results
    built = retriever.build_index(own_tiny, retriever=load_trained_model(tower))
    assert (built.kind, built.images) == ("embeddings", 48)
    found = retriever.search_images(QUERY, own_tiny, count=12, options=SearchOptions(max_scored=12))
    assert (found.kind, found.scored, found.exact, found.gap) == ("embeddings", 12, False, None)
    assert {one.id for one in found.results} == {one.id for one in cosines}
    assert [one.score for one in found.results] == pytest.approx([every[one.id] for one in found.results], abs=1e-4)
    assert [one.score for one in found.results] == sorted((one.score for one in found.results), reverse=True)


def test_a_two_tower_model_has_an_index_of_its_own_vectors(tower, own_tiny):
    retriever = limner.Retriever.load(tower, encode_images=False)
    expected = retriever.search_images(QUERY, own_tiny, count=5)
    assert retriever.build_index(own_tiny).kind == "embeddings"
    found = retriever.search_images(QUERY, own_tiny, count=5, options=SearchOptions(max_scored=20))
    assert [one.id for one in found.results] == [one.id for one in expected.results]


def test_many_vectors_get_the_index_of_lance(captioner, tower, own_tiny, monkeypatch):
    """The vectors of 48 images are too few to quantise, so that only the choice is tested."""
    created = []
    import lance

    monkeypatch.setattr(embeddings, "MAX_COMPARED", 20)
    monkeypatch.setattr(
        lance.LanceDataset, "create_index", lambda self, *args, **options: created.append((args, options))
    )
    limner.Retriever.load(captioner, encode_images=False).build_index(own_tiny, retriever=load_trained_model(tower))
    assert created == [(("vector", "IVF_PQ"), {"metric": "cosine", "num_partitions": 7, "num_sub_vectors": 1})]


def test_a_model_that_embeds_nothing_is_no_retriever(captioner, own_tiny):
    retriever = limner.Retriever.load(captioner, encode_images=False)
    with pytest.raises(SettingsError, match="expected a model that embeds images and sentences"):
        retriever.build_index(own_tiny, retriever=load_trained_model(captioner))


def test_damaged_vectors_are_refused(captioner, tower, own_tiny):
    retriever = limner.Retriever.load(captioner, encode_images=False)
    built = retriever.build_index(own_tiny, retriever=load_trained_model(tower))
    weights = built.path / embeddings.RETRIEVER / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    with pytest.raises(SearchIndexError, match=r"model\.safetensors"):
        limner.Retriever.load(captioner, encode_images=False).search_images(QUERY, own_tiny)


def test_the_command_builds_an_index_with_a_retriever(captioner, tower, own_tiny, command_line):
    status, printed, _ = command_line("index", own_tiny.path, "--model", captioner, "--retriever", tower)
    assert status == 0 and "index 'embeddings' of 48 images built" in printed

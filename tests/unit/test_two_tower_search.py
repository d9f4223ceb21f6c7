"""Two-tower models: training with a teacher, evaluation, and candidates of a search by the nearest vectors."""

import pytest
import torch

import limner
from limner.errors import RunError, SearchIndexError, SettingsError
from limner.evaluation.evaluate import evaluate
from limner.retrieval.index import embeddings
from limner.retrieval.index.protocol import SearchOptions
from limner.runs.recipe import Recipe
from limner.runs.trained_model import load_trained_model
from limner.storage.tensors import load_tensors, save_tensors
from limner.training.loop import train
from limner.training.matching import TEACHER_SCORES

QUERY = "a red wall"


@pytest.fixture(scope="module")
def teacher(tiny, recipe_of, tmp_path_factory):
    """A trained m-RNN."""
    return train(recipe_of("colour", epochs=2, validate_every=2), tiny, tmp_path_factory.mktemp("teacher") / "mrnn")


def recipe(recipe_of, **matching):
    values = recipe_of("colour", epochs=4, validate_every=2).model_dump(mode="json")
    values["model"] = {"name": "two_tower", "word_dim": 8, "hidden_dim": 8, "joint_dim": 8}
    values["training"] |= {"metric": "recall_sum", "metrics": ["recall_sum"], "batch_size": 8, "matching": matching}
    values["training"]["optimizer"] = {"name": "adamw", "lr": 0.01}
    return Recipe.parse(values)


@pytest.fixture(scope="module")
def tower(tiny, recipe_of, teacher, tmp_path_factory):
    """A trained two-tower model with a teacher."""
    folder = tmp_path_factory.mktemp("tower")
    return train(recipe(recipe_of, teacher=str(teacher), partitions=2), tiny, folder / "tower")


def test_the_teacher_scores_the_pairs_of_every_group(tower, teacher, tiny):
    scores = load_tensors(tower / TEACHER_SCORES)["log_probs"]
    assert scores.shape[0] == 2 and scores.shape[2] >= 8
    assert bool((scores[:, :, 0] < 0).all())
    trained = load_trained_model(tower)
    assert trained.recipe.training.matching.teacher == teacher


def test_an_interrupted_training_ends_with_the_same_weights(tiny, recipe_of, teacher, tower, tmp_path):
    class Stop(Exception):
        pass

    def stop(progress):
        if progress.state.epoch == 2:
            raise Stop

    settings = recipe(recipe_of, teacher=str(teacher), partitions=2)
    with pytest.raises(Stop):
        train(settings, tiny, tmp_path / "run", on_progress=stop)
    scores = tmp_path / "run" / TEACHER_SCORES
    of_another = torch.zeros_like(load_tensors(scores)["log_probs"])
    save_tensors(scores, {"log_probs": of_another}, {"teacher": "another"})  # they are computed again
    train(settings, tiny, tmp_path / "run", resume=True)
    expected, found = (load_tensors(run / "model.safetensors") for run in (tower, tmp_path / "run"))
    assert all(torch.equal(values, found[name]) for name, values in expected.items())


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
        ({"matching": {"teacher": "TOWER"}}, "expected a model that captions whole images, found 'two_tower'"),
    ],
)
def test_settings_that_do_not_fit(changes, message, tiny, recipe_of, tower, tmp_path):
    values = recipe(recipe_of).model_dump(mode="json")
    values["training"] |= changes
    if "matching" in changes:
        values["training"]["matching"] = {"teacher": str(tower)}
    with pytest.raises(SettingsError, match=message):
        train(Recipe.parse(values), tiny, tmp_path / "run")
    with pytest.raises(SettingsError, match="'recall_sum' does not fit model 'mrnn', which generates sentences"):
        train(recipe_of("colour", metric="recall_sum"), tiny, tmp_path / "run")


def test_it_captions_nothing(tower):
    with pytest.raises(RunError, match=r"expected a model that generates sentences, got 'two_tower'"):
        limner.load(tower, encode_images=False)


def test_candidates_are_the_nearest_and_their_scores_are_exact(teacher, tower, own_tiny):
    retriever = limner.Retriever.load(teacher, encode_images=False)
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


def test_many_vectors_get_the_index_of_lance(teacher, tower, own_tiny, monkeypatch):
    """The vectors of 48 images are too few to quantise, so that only the choice is tested."""
    created = []
    import lance

    monkeypatch.setattr(embeddings, "MAX_COMPARED", 20)
    monkeypatch.setattr(
        lance.LanceDataset, "create_index", lambda self, *args, **options: created.append((args, options))
    )
    limner.Retriever.load(teacher, encode_images=False).build_index(own_tiny, retriever=load_trained_model(tower))
    assert created == [(("vector", "IVF_PQ"), {"metric": "cosine", "num_partitions": 7, "num_sub_vectors": 1})]


def test_a_model_that_embeds_nothing_is_no_retriever(teacher, own_tiny):
    retriever = limner.Retriever.load(teacher, encode_images=False)
    with pytest.raises(SettingsError, match="expected a model that embeds images and sentences"):
        retriever.build_index(own_tiny, retriever=load_trained_model(teacher))


def test_damaged_vectors_are_refused(teacher, tower, own_tiny):
    retriever = limner.Retriever.load(teacher, encode_images=False)
    built = retriever.build_index(own_tiny, retriever=load_trained_model(tower))
    weights = built.path / embeddings.RETRIEVER / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    with pytest.raises(SearchIndexError, match=r"model\.safetensors"):
        limner.Retriever.load(teacher, encode_images=False).search_images(QUERY, own_tiny)


def test_the_command_builds_an_index_with_a_retriever(teacher, tower, own_tiny, command_line):
    status, printed, _ = command_line("index", own_tiny.path, "--model", teacher, "--retriever", tower)
    assert status == 0 and "index 'embeddings' of 48 images built" in printed

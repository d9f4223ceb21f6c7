"""Scores of all pairs within bounded memory equal those of one batch."""

import itertools
import logging
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from test_collection_index import reverse_features
from torch.utils._python_dispatch import TorchDispatchMode

import limner
from limner.data.collection import Collection, write_items
from limner.data.examples import Item
from limner.errors import CollectionError, SettingsError
from limner.evaluation.evaluate import EvaluationOptions, evaluate
from limner.evaluation.retrieval import RetrievalSettings, evaluate_retrieval, nearest_images
from limner.inference import retriever as module
from limner.layers.image_encoder import ImageEncoderSettings
from limner.metrics.ranks import chance_area, chance_curve, match_area, match_curve, shortlist_ranks
from limner.models.mrnn import MRNN, MRNNSettings
from limner.models.protocols import ModelInputs
from limner.retrieval.all_pairs import pair_log_probs, score_tiles
from limner.retrieval.marginal import FOLDER, log_marginal, normalised_log_probs
from limner.runs.recipe import EvaluationSettings
from limner.runs.trained_model import load_trained_model
from limner.storage.tensors import load_tensors, save_tensors


@pytest.fixture(scope="module")
def whole(model, examples):
    return pair_log_probs(model.model, examples.targets, examples.items, examples.features)


@pytest.mark.parametrize("budget", [1, 3_000, 20_000, 200_000])
@pytest.mark.parametrize("at_once", [3, 1000])
def test_the_memory_budget_does_not_change_results(model, examples, whole, budget, at_once, monkeypatch):
    monkeypatch.setattr("limner.retrieval.all_pairs.IMAGES_READ_PER_BATCH", at_once)
    progress = []
    arguments = model.model, examples.targets, examples.items, examples.features
    result = pair_log_probs(*arguments, budget=budget, on_progress=lambda done, total: progress.append((done, total)))
    torch.testing.assert_close(result, whole, rtol=1e-5, atol=1e-5)
    assert progress[-1] == (whole.numel(), whole.numel())
    assert [done for done, _ in progress] == sorted(done for done, _ in progress)


@pytest.mark.parametrize("others", [0, 5])
@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_the_mean_image_is_not_part_of_the_marginal(model, examples, tiny, others, at_once, monkeypatch):
    monkeypatch.setattr("limner.retrieval.all_pairs.IMAGES_READ_PER_BATCH", at_once)
    sampled = tiny.items("train")[:others]
    (mean_image,) = examples.features.take(tiny.items("train")[7:8])
    arguments = model, examples.targets, examples.items, examples.features, sampled
    with_it, without = (
        normalised_log_probs(*arguments, mean=mean_image, budget=9_000),
        normalised_log_probs(*arguments, budget=9_000),
    )
    torch.testing.assert_close(with_it.normalised, without.normalised)
    torch.testing.assert_close(with_it.marginal, without.marginal)
    alone = pair_log_probs(model.model, examples.targets, tiny.items("train")[7:8], examples.features)
    torch.testing.assert_close(with_it.mean, alone[:, 0])
    assert without.mean is None


@pytest.mark.parametrize("others", [0, 5, 32])
def test_the_marginal_is_accumulated_over_tiles(model, examples, whole, tiny, others, monkeypatch):
    # 8 images of the split, in several tiles.
    monkeypatch.setattr("limner.retrieval.all_pairs.IMAGES_READ_PER_BATCH", 3)
    sampled = tiny.items("train")[:others]
    result = normalised_log_probs(
        model, examples.targets, examples.items, examples.features, sampled, budget=9_000
    ).normalised
    matrix = whole
    if others:
        matrix = pair_log_probs(model.model, examples.targets, sampled, examples.features)
        alone = log_marginal(model.model, examples.targets, sampled, examples.features, budget=9_000)
        torch.testing.assert_close(alone, matrix.exp().mean(1).log(), rtol=1e-4, atol=1e-4)
    expected = whole - matrix.exp().mean(1).log().unsqueeze(1)  # eq. 7, with the mean in place of the sum
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


def test_memory_does_not_grow_with_the_sentences():
    """Peak memory beside the weights, the token ids and the matrix."""
    settings = MRNNSettings(embedding_dim=16, hidden_dim=32, multimodal_dim=64)
    torch.manual_seed(0)
    random, budget = np.random.default_rng(1), 1 << 20
    model, source = MRNN(settings, ModelInputs(200, {"pooled": (8,)})), Stored(random.random((20, 8)))

    def peak(sentences):
        targets = [random.integers(4, 200, 12).tolist() for _ in range(sentences)]
        with Watch() as watch, torch.inference_mode():
            for _ in score_tiles(model, targets, source.items(), source, budget=budget):
                pass
        return watch.peak

    few, many = peak(100), peak(1000)  # prefixes of 1,000 sentences: 3 MiB
    assert many <= budget
    assert few < budget


class Watch(TorchDispatchMode):
    """Peak memory in bytes of the tensors created within it."""

    def __init__(self):
        super().__init__()
        self.live, self.peak = {}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for one in out if isinstance(out, tuple | list) else [out]:
            if isinstance(one, torch.Tensor):
                storage = one.untyped_storage()
                self.live[storage._cdata] = torch.multiprocessing.reductions.StorageWeakRef(storage), storage.nbytes()
        self.live = {key: entry for key, entry in self.live.items() if not entry[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self.live.values()))
        return out


def test_the_precision_is_part_of_the_signature(model, examples, tiny, monkeypatch):
    def signatures():
        settings = RetrievalSettings(budget=1 << 20)
        return [score.signature for score in evaluate_retrieval(model, examples, tiny, [], settings)[0]]

    assert all("|fp32" in signature for signature in signatures())
    monkeypatch.setattr("limner.retrieval.marginal.uses_bf16", lambda model: True)
    assert all("|bf16" in signature for signature in signatures())


def test_an_item_without_an_image_is_an_error(model, examples):
    with pytest.raises(CollectionError, match="item 'blind' has no image"):
        normalised_log_probs(model, [[4]], [Item("blind", "test")], examples.features, [])


def test_alpha_weighs_the_marginal(trained_on_colours, tiny, backbone_of):
    retriever = limner.Retriever(load_trained_model(trained_on_colours), backbone_of())
    image = tiny.media_file(next(iter(tiny.items("test"))))

    def scores(alpha):
        found = retriever.retrieve_sentences(image, tiny, split="test", count=100, alpha=alpha)
        return {one.text: one.score for one in found}

    plain, half, full = scores(0.0), scores(0.5), scores(1.0)
    assert plain and all(half[text] == pytest.approx((plain[text] + full[text]) / 2, abs=1e-4) for text in plain)
    assert any(abs(plain[text] - full[text]) > 0.1 for text in plain)


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns(FOLDER))


@pytest.fixture
def photo(tmp_path):
    Image.new("RGB", (40, 40), (20, 20, 250)).save(tmp_path / "blue.jpg")
    return tmp_path / "blue.jpg"


@pytest.fixture
def computed(monkeypatch):
    """Numbers of sentences of the marginals that were computed."""
    calls, compute = [], module.log_marginal

    def counted(model, targets, *arguments, **options):
        calls.append(len(targets))
        return compute(model, targets, *arguments, **options)

    monkeypatch.setattr(module, "log_marginal", counted)
    return calls


def search(run, photo, collection, split="test", **options):
    retriever = limner.Retriever.load(run)
    return retriever.retrieve_sentences(photo, collection, split=split, count=100, **options)


def test_a_stored_marginal_gives_the_same_results_without_being_computed_again(run, photo, tiny, computed):
    loaded = limner.Retriever.load(run)
    uncached = limner.Retriever(loaded.model, loaded.backbone).retrieve_sentences(photo, tiny, split="test", count=100)
    progress = []
    first = search(run, photo, tiny, on_progress=lambda done, total: progress.append((done, total)))
    assert len(computed) == 2
    assert progress[-1][0] == progress[-1][1] == 32 * computed[-1]  # every distinct sentence with every training image
    again = search(run, photo, tiny, on_progress=lambda done, total: pytest.fail("computed again"))
    assert uncached == first == again
    assert len(computed) == 2
    assert not [path for path in (run / FOLDER).iterdir() if path.suffix != ".safetensors"]


def test_splits_and_collections_have_marginals_of_their_own(run, photo, tiny, own_tiny, computed):
    for split in ("test", "val", None, "test", "val", None):
        search(run, photo, tiny, split)
    search(run, photo, own_tiny)
    assert len(computed) == len(list((run / FOLDER).iterdir())) == 4


def change_weights(run, collection):
    weights = load_tensors(run / "model.safetensors")
    save_tensors(run / "model.safetensors", {name: value * 1.01 for name, value in weights.items()})


def change_sentences(run, collection):
    items = Collection.open(collection.path).items()
    changed = [replace(item, sentences=item.sentences[:1]) if item.split == "test" else item for item in items]
    shutil.rmtree(collection.path / "items.lance")
    write_items(collection.path, changed)


def change_images(run, collection):
    items = Collection.open(collection.path).items()
    shutil.rmtree(collection.path / "items.lance")
    write_items(collection.path, [replace(item, image="train0.png") if item.id == "train1" else item for item in items])


def change_features(run, collection):
    reverse_features(collection, "pixels16")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (change_weights, "made for other weights"),
        (change_sentences, "made for other sentences"),
        (change_images, "made for other images"),
        (change_features, "made for other features"),
    ],
)
def test_a_stale_marginal_is_computed_again_and_the_reason_is_said(
    run, photo, own_tiny, computed, caplog, change, reason
):
    search(run, photo, own_tiny)
    change(run, own_tiny)
    with caplog.at_level(logging.WARNING):
        result = search(run, photo, Collection.open(own_tiny.path))
    assert f"{reason}; P(w) is computed again" in caplog.text
    assert len(computed) == 2
    shutil.rmtree(run / FOLDER)
    assert search(run, photo, Collection.open(own_tiny.path)) == result


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "text"])
def test_a_damaged_marginal_is_computed_again(run, photo, tiny, computed, caplog, damage):
    result = search(run, photo, tiny)
    (path,) = (run / FOLDER).iterdir()
    data = path.read_bytes()
    flipped = data[:-2] + bytes([data[-2] ^ 1]) + data[-1:]
    changed = {"flipped": flipped, "cut": data[:-4], "empty": b"", "text": b"{}" * 99}
    path.write_bytes(changed[damage])
    with caplog.at_level(logging.WARNING):
        assert search(run, photo, tiny) == result
    assert re.search(rf"{re.escape(str(path))}: .*damaged.*; P\(w\) is computed again", caplog.text)
    assert path.read_bytes() == data


def test_a_run_that_cannot_be_written_is_searched_with_a_warning(run, photo, tiny, caplog):
    result = search(run, photo, tiny)
    shutil.rmtree(run / FOLDER)
    (run / FOLDER).write_text("in the way")
    with caplog.at_level(logging.WARNING):
        assert search(run, photo, tiny) == result
    assert "the next search computes P(w) again" in caplog.text


def searched(model, tiny, shortlist):
    result = evaluate(
        [model], tiny, options=EvaluationOptions(metrics=("bleu1",), measures=EvaluationSettings(shortlist=shortlist))
    )
    return {score.name: score for score in result.scores}, result.retrieval


def test_only_the_shortlist_is_ranked():
    scores = np.array([[0.5, 0.1, 0.1], [0.4, 0.9, 0.2], [0.1, 0.3, 0.2], [0.9, 0.8, np.nan]])
    owners = np.array([0, 1, 1, 2])  # image 1 has two sentences, of which the better counts
    alone, two, all_ = ([[0], [1], [2]], [[0, 1], [1, 2], [2, 0]], [[0, 1, 2], [1, 0, 2], [2, 0, 1]])
    assert shortlist_ranks(scores, owners, np.array(alone)).tolist() == [1, 1, 1]
    assert shortlist_ranks(scores, owners, np.array(two)).tolist() == [1, 1, 2]  # NaN ranks last
    assert shortlist_ranks(scores, owners, np.array(all_)).tolist() == [2, 1, 4]


def test_ties_count_against_the_model():
    assert shortlist_ranks(np.ones((3, 3)), np.arange(3), np.array([[0, 1], [1, 2], [2, 0]])).tolist() == [2, 2, 2]


def test_the_area_equals_the_area_under_the_curve_and_chance_the_mean_of_all_orders():
    ranks, candidates = np.array([1, 3, 2, 4]), np.array([4, 4, 4, 4])
    curve = match_curve(ranks, candidates)
    assert curve == ((0.0, 0.0), (0.25, 0.25), (0.5, 0.5), (0.75, 0.75), (1.0, 1.0))
    shares, result = zip(*curve, strict=True)
    assert match_area(ranks, candidates) == pytest.approx(100 * np.trapezoid(result, shares))
    assert match_area(np.array([1, 10]), np.array([5, 10])) == pytest.approx(100 * (0.9 + 0.05) / 2)
    first = [min(places) + 1 for places in itertools.combinations(range(6), 2)]  # two right answers among six
    six = np.full(len(first), 6)
    two = np.full(len(first), 2)
    assert chance_area(two, six) == pytest.approx(match_area(np.array(first), six))
    np.testing.assert_allclose(chance_curve(two, six), match_curve(np.array(first), six), atol=1e-12)
    assert chance_area(np.array([1]), np.array([100])) == pytest.approx(50)
    shares, chance = zip(*chance_curve(np.array([1]), np.array([49])), strict=True)  # 1 / 49 * 49 is below 1 in float64
    assert chance == pytest.approx(shares)


class Stored:
    """Features by the id of the item."""

    def __init__(self, values, kind="pooled"):
        self.values, self.kind = np.asarray(values, dtype=np.float16), kind

    def items(self):
        return [Item(str(row), "test", image="x.png") for row in range(len(self.values))]

    def take(self, items):
        return [{self.kind: self.values[int(item.id)]} for item in items]


def test_nearest_images_start_with_the_image_itself(model):
    source = Stored([[0, 0], [3, 0], [0, 1], [0, 0], [50, 0]])
    near = nearest_images(model, source.items(), source, 3).tolist()
    assert [row[0] for row in near] == [0, 1, 2, 3, 4]  # although images 0 and 3 are equal
    assert near[:2] == [[0, 3, 2], [1, *near[1][1:]]]
    assert near[4] == [4, 1, *near[4][2:]]


@pytest.mark.parametrize("kind", ["pooled", "maps"])
def test_distances_are_between_the_image_vectors_of_the_multimodal_rnn(model, kind):
    """Convnet outputs define the distance of pixel models; stored features are scaled as in the recipe."""
    torch.manual_seed(3)
    shape, random = {"pooled": (6,), "maps": (4, 9, 9)}[kind], np.random.default_rng(4)
    settings = model.recipe.model.model_copy(update={"image_encoder": ImageEncoderSettings(scaling="unit")})
    network = MRNN(settings, ModelInputs(model.model.vocab_size, {kind: shape})).eval()
    values = (random.random((12, *shape)) * random.random((12, *[1] * len(shape))) * 9).astype(np.float16)

    source = Stored(values, kind)
    encoded = torch.from_numpy(values).float()
    if kind == "maps":
        with torch.no_grad():
            expected = network.image_encoder.convnet(encoded)
    else:
        expected = encoded / encoded.norm(dim=1, keepdim=True)
    order = torch.cdist(expected, expected).argsort(1)[:, :5]
    assert torch.equal(nearest_images(model._replace(model=network), source.items(), source, 5), order)
    assert not torch.equal(torch.cdist(encoded.flatten(1), encoded.flatten(1)).argsort(1)[:, :5], order)


def test_a_shortlist_longer_than_the_images_is_an_error_before_decoding(model, tiny, monkeypatch):
    monkeypatch.setattr("limner.inference.generate.Engine", None)
    with pytest.raises(SettingsError, match=r"expected at most 8, .*got 9; set evaluation\.shortlist=8"):
        searched(model, tiny, 9)


def test_a_shortlist_changes_no_other_score(model, tiny):
    scores, shown = searched(model, tiny, None)
    listed, in_shortlists = searched(model, tiny, 1)  # of the image itself
    assert not any("match" in name for name in scores)
    assert shown.shortlist is shown.match_curves is None
    assert {name: score for name, score in listed.items() if "match" not in name} == scores
    assert all(query.rank == 1 and all(one.right for one in query.top) for query in in_shortlists.image_to_text)
    assert not all(one.right for query in shown.image_to_text for one in query.top)

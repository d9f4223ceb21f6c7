"""Several processes compute the loss, the gradient and the results of one, on any division of a batch."""

import copy
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.distributed import TCPStore

from limner.data.batching import ONE_PROCESS
from limner.data.examples import Example, collate
from limner.errors import SettingsError
from limner.models import build_model
from limner.models.bag_of_words import BagOfWordsSettings
from limner.models.independent_descriptions import IndependentSettings
from limner.models.mrnn import MRNNSettings
from limner.models.ngram import NGramSettings
from limner.models.protocols import Mean, ModelInputs
from limner.models.show_attend_tell import ShowAttendTellSettings
from limner.models.two_tower import TwoTowerSettings
from limner.runs.recipe import Recipe
from limner.training.losses import loss_terms
from limner.training.processes import Devices, Processes, StepLoss, launch

SMALL = {"embedding_dim": 4, "hidden_dim": 5}
MODELS = {
    "mrnn": MRNNSettings(**SMALL, multimodal_dim=6),
    "attention": ShowAttendTellSettings(**SMALL, attention_dim=4),
    "independent": IndependentSettings(embedding_dim=4, hidden_dim=5, input_dropout=0),
    "bag_of_words": BagOfWordsSettings(),
}


def test_a_reason_is_that_of_the_same_start_of_the_processes(monkeypatch):
    """Torchrun keeps the store of the processes when it starts them again."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    starts = []
    for attempt in range(2):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(attempt))
        starts.append(Processes(SimpleNamespace(world_size=2, global_rank=1, local_rank=1)))
    starts[0]._store_reason(SettingsError("first"))
    assert "first" in starts[0]._stored_reason()
    assert "does not answer" in starts[1]._stored_reason()
    starts[1]._store_reason(SettingsError("second"))
    assert "second" in starts[1]._stored_reason()


class Threads:
    """Stand-in for Fabric in one of several threads: sums, and the objects of the first."""

    def __init__(self, size):
        self.size, self.barrier, self.values = size, threading.Barrier(size), {}

    def fabric(self, rank):
        def all_reduce(value, reduce_op):
            assert reduce_op == "sum"
            self.values[rank] = value.clone()
            self.barrier.wait(30)
            total = sum(self.values[other] for other in range(self.size))
            self.barrier.wait(30)
            return total

        return SimpleNamespace(world_size=1, global_rank=rank, device=torch.device("cpu"), all_reduce=all_reduce)

    def run(self, function):
        """Results of `function(processes)` of all processes."""
        results = [None] * self.size

        def work(rank):
            processes = Processes(self.fabric(rank))
            processes.size = self.size  # after the constructor, which connects to the store of real processes
            results[rank] = function(processes)

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return results


def examples(count, translates):
    """Examples of different lengths, with a pooled vector and a grid each."""
    random = np.random.default_rng(0)
    draw = lambda: random.integers(4, 9, random.integers(1, 7)).tolist()  # noqa: E731
    return [
        Example(
            f"image{number}",
            draw(),
            draw() if translates else None,
            {"pooled": random.normal(size=3).astype(np.float16), "grid": random.normal(size=(4, 3)).astype(np.float16)},
        )
        for number in range(count)
    ]


def model_of(name):
    torch.manual_seed(0)
    shapes = {"pooled": (3,)} if name in ("mrnn", "bag_of_words") else {"grid": (4, 3), "pooled": (3,)}
    return build_model(MODELS[name], ModelInputs(9, shapes, 9 if name == "independent" else None)).double().train()


def gradient(model, rows, data, processes):
    """Gradient of this process and the combined loss; every process has a copy of the model."""
    own = collate([data[row] for row in processes.rows(rows)])
    own.image = own.image._replace(pooled=own.image.pooled.double(), grid=own.image.grid.double())
    step = processes.combine(StepLoss(loss_terms(model(own), own), int(own.target_mask.sum())), rows, False)
    step.loss.backward()
    return step, [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("count", [7, 2, 1], ids=lambda count: f"{count} examples")
def test_the_mean_gradient_of_the_processes_is_that_of_one(name, count):
    data, rows = examples(count, name == "independent"), list(range(count))
    model = model_of(name)
    copies = [copy.deepcopy(model) for _ in range(3)]
    ((whole, expected),) = Threads(1).run(lambda one: gradient(model, rows, data, one))
    shares = Threads(3).run(lambda one: gradient(copies[one.rank], rows, data, one))
    assert any(part.abs().sum() > 0 for part in expected)
    for parts in zip(expected, *(gradients for _, gradients in shares), strict=True):
        torch.testing.assert_close(sum(parts[1:]) / 3, parts[0], rtol=1e-10, atol=1e-12)
    for step, _ in shares:
        assert (step.value, step.reported) == pytest.approx((whole.value, whole.reported), rel=1e-12)
        assert step.tokens == whole.tokens


def test_every_example_of_a_batch_is_in_one_share_and_counts_once():
    for count in range(1, 9):
        rows = list(range(100, 100 + count))
        shares = Threads(4).run(lambda one, rows=rows: list(one.rows(rows)))
        assert sorted(row for share in shares[:count] for row in share) == rows
        assert all(share == rows[:1] for share in shares[count:]), "an idle process computes a loss of weight 0"
        means = Threads(4).run(
            lambda one, rows=rows: one.combine(
                StepLoss((Mean(torch.ones(()), 1),), 1, Mean(torch.tensor(2.0), 1)), rows, False
            )
        )
        assert [step.tokens for step in means] == [min(4, count)] * 4
        assert {(step.value, step.reported) for step in means} == {(1.0, 2.0)}


def test_one_interrupted_process_stops_all_after_the_same_step():
    term = StepLoss((Mean(torch.ones(()), 1),), 1)
    steps = Threads(3).run(lambda one: one.combine(term, [0, 1, 2], one.rank == 1))
    assert [step.interrupted for step in steps] == [True] * 3
    assert Threads(3).run(lambda one: one.any(one.rank == 2)) == [True] * 3
    assert Threads(3).run(lambda one: one.any(False)) == [False] * 3


@pytest.mark.parametrize("count", range(7))
def test_results_of_all_batches_are_gathered_in_their_order(count, monkeypatch):
    batches, parts = [f"batch {number}" for number in range(count)], {}

    def collect(one, value):
        parts[one.rank] = value
        return [parts[rank] for rank in range(3)]

    monkeypatch.setattr(Processes, "collect", collect)
    shares = [Processes(Threads(1).fabric(rank)) for rank in range(3)]
    for one in shares:
        one.size = 3
        parts[one.rank] = list(one.local(batches))
    assert all(one.gather(one.local(batches)) == batches == ONE_PROCESS.gather(batches) for one in shares)


def test_random_numbers_differ_between_processes_and_after_a_change_of_their_number():
    drawn = []
    for rank, step in [(0, 0), (1, 0), (2, 0), (1, 50)]:
        torch.manual_seed(7)
        Processes(Threads(1).fabric(rank)).seed(7, step)
        drawn.append(torch.rand(4))
    torch.manual_seed(7)
    assert torch.equal(drawn[0], torch.rand(4)), "the first process has the random numbers of a single one"
    assert len({tuple(one.tolist()) for one in drawn}) == 4


@pytest.mark.parametrize(
    ("model", "devices", "message"),
    [
        (NGramSettings(), Devices("cpu", 2), r"--devices 2 --nodes 1: model 'ngram' is estimated by counting"),
        (TwoTowerSettings(), Devices("cpu", 2), r"model 'two_tower' compares all pairs of a batch"),
        (MRNNSettings(), Devices("cpu", 2, 2), r"--nodes 2: .*MASTER_ADDR is not set; start the command with torchrun"),
    ],
)
def test_what_cannot_be_trained_on_several_devices_is_refused_before_a_process_starts(
    monkeypatch, model, devices, message
):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    training = {} if model.generates else {"metric": "recall_sum", "metrics": []}
    recipe = Recipe.parse({"model": model.model_dump(), "training": training})
    with pytest.raises(SettingsError, match=message):
        launch(recipe, devices)


def test_the_numbers_of_torchrun_are_taken_over(monkeypatch):
    for name, value in {"TORCHELASTIC_RUN_ID": "1", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "6"}.items():
        monkeypatch.setenv(name, value)
    resolved = Devices().resolved()
    assert (resolved.number, resolved.nodes, resolved.total) == (2, 3, 6)
    with pytest.raises(SettingsError, match=r"--devices 2 --nodes 3, got --devices 4 --nodes 3; leave"):
        Devices(number=4).resolved()

"""Memory that would be allocated is compared with what is available, and the error names the setting to lower."""

import pytest
import torch

from limner import process
from limner.data.dataset import Examples
from limner.data.examples import Example, Item, ItemSentence, collate
from limner.data.languages import TargetLanguage
from limner.decoding.settings import DecodingSettings
from limner.decoding.torch_models import beam_search
from limner.errors import ResourceError
from limner.features.kmeans import KMeansSettings, learn_filters
from limner.models import ModelInputs
from limner.models.ngram import NGram, NGramSettings
from limner.process import available_memory, require_memory, require_space
from limner.retrieval.all_pairs import score_tiles
from limner.runs.training_settings import TrainingSettings
from limner.synthetic.reviews import ReviewSettings
from limner.synthetic.scenes import SceneSettings
from limner.synthetic.storage import generate_collection
from limner.text.tokenizer import Tokenizer
from limner.text.words import TextSettings
from limner.training.loop import train
from limner.training.setup import estimate_memory

GIB = 1 << 30


@pytest.fixture
def little_memory(monkeypatch):
    """A machine with 1 MiB of free memory."""
    monkeypatch.setattr(process, "NEGLIGIBLE", 0)
    monkeypatch.setattr(process, "available_memory", lambda device=None: 1 << 20)
    for module in ("decoding.torch_models", "training.setup"):
        monkeypatch.setattr(f"limner.{module}.available_memory", lambda device=None: 1 << 20)


def test_the_smaller_of_machine_and_control_group_is_available(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "_MEMORY_INFORMATION", tmp_path / "meminfo")
    monkeypatch.setattr(process, "_CONTROL_GROUP", tmp_path)
    assert available_memory() is None
    (tmp_path / "meminfo").write_text("MemTotal:  8388608 kB\nMemAvailable:  4194304 kB\n")
    assert available_memory() == 4 * GIB
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("5\n")
    assert available_memory() == 4 * GIB
    (tmp_path / "memory.max").write_text(f"{GIB + 5}\n")
    assert available_memory() == GIB


def test_cached_files_of_a_container_count_as_free(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "_MEMORY_INFORMATION", tmp_path / "meminfo")
    monkeypatch.setattr(process, "_CONTROL_GROUP", tmp_path)
    for name in ("memory.max", "memory.current"):
        (tmp_path / name).write_text(f"{4 * GIB}\n")
    assert available_memory() == 0
    lines = (f"active_file {GIB}", f"inactive_file {2 * GIB}", f"anon {GIB}")
    (tmp_path / "memory.stat").write_text("\n".join(lines))
    assert available_memory() == 3 * GIB


def test_memory_that_torch_keeps_on_a_gpu_counts_as_free(monkeypatch):
    for name, value in (("mem_get_info", (GIB, 8 * GIB)), ("memory_reserved", 6 * GIB), ("memory_allocated", 2 * GIB)):
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    assert available_memory(torch.device("cuda")) == 5 * GIB


def test_the_error_names_what_is_needed_and_the_remedy(monkeypatch):
    monkeypatch.setattr(process, "available_memory", lambda device=None: GIB)
    require_memory(GIB, "a", "b")
    with pytest.raises(ResourceError, match=r"^training: needs about 2\.0 GiB of memory, and 1\.0 GiB are "):
        require_memory(2 * GIB, "training", "lower training.batch_size")
    monkeypatch.setattr(process, "available_memory", lambda device=None: None)
    require_memory(1 << 60, "where it is not known", "nothing is refused")


def test_disk_space(tmp_path):
    require_space(tmp_path / "new" / "folder", 1, "a", "b")
    with pytest.raises(ResourceError, match=r"new: a needs about .* GiB of disk space, and .* are free; lower b"):
        require_space(tmp_path / "new", 1 << 60, "a", "lower b")


def test_a_training_that_does_not_fit_is_refused_before_the_first_step(recipe_of, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(process, "NEGLIGIBLE", 0)
    monkeypatch.setattr("limner.training.setup.available_memory", lambda device=None: 1000)
    with pytest.raises(ResourceError, match=r"^training: needs about .*; lower (model\.\w+|training\.batch_size) \("):
        train(recipe_of("colour"), tiny, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_memory_of_a_training_by_hand():
    """Embeddings (9, 3), a hidden layer (5, 3) with a bias, an output layer (9, 5): 92 weights, 3 + 5 + 5 values.

    A batch has 2 sentences of 3 tokens and their ends: 8 positions with 2 x 9 logits and 13 values of layers.
    """
    model = torch.nn.ModuleList([torch.nn.Embedding(9, 3), torch.nn.Linear(3, 5), torch.nn.Linear(5, 9, bias=False)])
    model.vocab_size = 9
    items = [Item(str(n), "train", sentences=(ItemSentence("en", "a red wall"),)) for n in range(4)]
    examples = Examples(items, TargetLanguage("en", Tokenizer.train(["a red wall"], TextSettings())), None)
    for values, copies in (
        ({"optimizer": {"name": "adam"}}, 3),  # the gradients and two moments
        ({"optimizer": {"name": "sgd", "momentum": 0.5}, "ema_decay": 0.9}, 3),
        ({"optimizer": {"name": "sgd", "momentum": 0.0}}, 1),
    ):
        settings = TrainingSettings.parse({"batch_size": 2, **values})
        assert estimate_memory(model, settings, examples) == (4 * 92 * copies, 4 * 8 * (2 * 9 + 13))


def test_a_beam_and_a_working_memory_that_do_not_fit_are_refused(little_memory, monkeypatch):
    model = NGram(NGramSettings(), ModelInputs(10_000))
    monkeypatch.setattr("limner.decoding.torch_models.available_memory", lambda device=None: GIB)
    with pytest.raises(ResourceError, match=r"beams of 10,000 hypotheses for 1 inputs: .*; lower beam_size"):
        beam_search([model], collate([Example("a", ())]), DecodingSettings(beam_size=10_000))
    with pytest.raises(ResourceError, match=r"lower the budget \(--memory\)"):
        next(score_tiles(None, [], [], None, budget=1 << 44))


def test_collections_that_do_not_fit_are_not_generated(little_memory, tmp_path):
    with pytest.raises(ResourceError, match=r"a collection of 1,000 items.*lower the numbers of items \(--train"):
        generate_collection(tmp_path / "c", ReviewSettings(train=1000, val=0, test=0))
    with pytest.raises(ResourceError, match=r"--train"):
        generate_collection(tmp_path / "c", SceneSettings(train=10_000))
    assert not (tmp_path / "c").exists()


def test_patches_that_do_not_fit_are_refused(tiny):
    with pytest.raises(ResourceError, match=r"k-means of image patches: .*; lower the side of a patch \(--patch\)"):
        learn_filters(tiny, KMeansSettings(size=1024, patch=1024, grid=1, filters=4))

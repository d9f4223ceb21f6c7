"""Readings of the papers that sizes and recipes depend on; `docs/models.md` lists them."""

import json
from pathlib import Path

import pytest
import torch

from limner.models.nmt import NMT
from limner.models.protocols import ModelInputs
from limner.runs.recipe import load_recipe

ENGLISH, GERMAN = 83_093, 91_141
"""Sizes of the vocabularies of Calixto et al. (2017), section 4."""


def sizes_of(recipe, *changes, vocabulary=(ENGLISH, GERMAN), shapes=None):
    """Create the model of a recipe without memory for its weights."""
    source, target = vocabulary
    settings = load_recipe(recipe, list(changes)).model
    shapes = {"grid": (196, 1024), "pooled": (4096,)} if shapes is None else shapes
    with torch.device("meta"):
        return NMT(settings, ModelInputs(target, shapes, source))


def millions(model):
    return round(sum(weight.numel() for weight in model.parameters()) / 1e6, 2)


@pytest.mark.parametrize(
    ("changes", "text", "image"),
    [
        ((), 196.76, 202.64),
        (("model.attention_dim=2048",), 199.91, 207.89),
        (("model.attention_dim=4608", "model.readout_dim=540"), 200.19, 213.34),
        (("model.attention_dim=4096", "model.readout_dim=550", "projection"), 199.56, 212.72),
    ],
)
def test_sizes_that_give_the_printed_numbers_of_parameters(changes, text, image):
    """Calixto et al. (2017), section 5.2, print about 200 and 213 million, 6.6 % more."""
    own = [change for change in changes if change != "projection"]
    dropout = {"image_encoder": "{dropout: 0.5, projection_dim: 1024}"} if "projection" in changes else {}
    with_image = [*own, *(f"model.{key}={value}" for key, value in dropout.items())]
    counted = millions(sizes_of("calixto2017/nmt", *own)), millions(sizes_of("calixto2017/src-img", *with_image))
    assert counted == (text, image)
    printed = abs(text - 200) < 0.5 and abs(image - 213) < 0.5
    assert printed == (len(changes) > 1)


@pytest.mark.parametrize("folder", ["calixto2016", "calixto2016/small"])
def test_rows_of_2016_differ_by_the_image_alone(folder):
    """Calixto et al. (2016), section 2.1 and eq. 2: s_0 = f_init(h_1 + i_proj), and without the image f_init(h_1)."""
    models = [load_recipe(f"{folder}/{name}", []).model for name in ("text", "fc7", "conv5")]
    assert [model.image for model in models] == [(), ("initial",), ("initial", "attention")]
    assert {model.initial_state for model in models} == {"first"}
    assert len({model.model_copy(update={"image": (), "image_encoder": None}) for model in models}) == 1


@pytest.mark.parametrize("row", ["text", "fc7", "conv5"])
def test_states_and_context_vectors_of_2016_have_1000_values(row):
    """Calixto et al. (2016), section 3: 300D word embeddings, 1000D hidden states and 1000D context vectors."""
    model = sizes_of(f"calixto2016/{row}", vocabulary=(50, 60), shapes={"pooled": (4096,), "grid": (196, 512)})
    assert model.initial.weight.shape == (1000, 1000)  # from h_1 to s_0
    assert model.decoder.source_context.in_features == 1000
    assert model.target_embedding.embedding_dim == model.source_embedding.embedding_dim == 300


@pytest.mark.parametrize("recipe", ["calixto2017/huang-m3", "calixto2017/src-img-de-en", "calixto2016/conv5"])
def test_recipes_of_the_papers_on_translation_shrink_the_beam(recipe):
    """As dl4mt-tutorial and Nematus do; what was measured, with the recipes of the small size, has a full beam."""
    assert load_recipe(recipe, []).decoding.stop == "shrink"
    assert load_recipe(recipe.replace("/", "/small/"), []).decoding.stop == "full"


BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LOGS = {
    "joeynmt-train": "Epoch   1, total training loss: 845.86, num. of seqs: 640, num. of tokens: 7921, 16.0000[sec]\n"
    "Epoch   2, total training loss: 621.96, num. of seqs: 640, num. of tokens: 7921, 8.0000[sec]\n",
    "joeynmt-test": "Predicting 64 example(s)... (Beam search with beam_size=6)\nGeneration took 0.5000[sec].\n",
    "nmtpytorch-train": "mins (total: 0.26 mins)   (40 samples/sec)\nmins (total: 0.23 mins)   (46 samples/sec)\n",
    "nmtpytorch-translate": "Starting translation\nTook 1.500 seconds, 42 sent/sec\n",
}
RATES = {"joeynmt-train": 80, "joeynmt-test": 128, "nmtpytorch-train": 46, "nmtpytorch-translate": 42}
RESULT = '{"count": 100, "seconds": 0.5}\n'


@pytest.fixture
def peers(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import peers

    monkeypatch.setenv("LIMNER_PEERS", str(tmp_path))
    monkeypatch.setattr(peers.venv, "create", lambda *_, **__: None)
    monkeypatch.setattr(peers, "real_data", lambda: None)
    monkeypatch.setattr(peers, "VECTORS", 300)
    return peers


def test_figures_are_read_from_the_logs_and_a_peer_that_cannot_be_installed_is_a_line(peers, monkeypatch, capsys):
    def run_program(command):
        if "faiss-cpu" in command:
            raise RuntimeError("no matching distribution")
        if "pip" in command or "-c" in command:
            return "1.2.3\n"
        if "--random" in command:
            return "generate: 4.00 s of processor time\nlimner: 2.00 s of processor time\n"
        return LOGS.get(command[2], RESULT)

    monkeypatch.setattr(peers, "run_program", run_program)
    peers.peers()
    lines = {line["name"].split(", ")[1]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}
    assert lines.keys() == {*(comparison.program for comparison in peers.COMPARISONS), "generate"}
    assert lines["faiss"]["unit"] == "not measured" and lines["faiss"]["reason"] == "no matching distribution"
    assert {program: lines[program]["peer"] for program in RATES} == RATES
    assert all(lines[program]["value"] == pytest.approx(200 / rate, rel=1e-3) for program, rate in RATES.items())
    assert lines["usearch"]["value"] == 1 and lines["usearch"]["version"] == "1.2.3"
    assert lines["generate"]["value"] == 2


def test_a_log_without_figures_is_the_reason(peers):
    with pytest.raises(ValueError, match="got: Segmentation fault"):
        peers.read_rate(peers.RESULT, "Segmentation fault\n")


def test_the_programs_exist_and_run_on_the_data(peers, tmp_path, capsys):
    from peer_programs import PROGRAMS

    programs = {name for one in peers.COMPARISONS for name in (one.program, f"limner-{one.ours}")}
    assert programs == set(PROGRAMS)
    peers.write_data(tmp_path)
    for name in ("scores", "cider", "rouge", "significance", "vectors"):
        PROGRAMS[f"limner-{name}"](tmp_path)
        assert peers.read_rate(peers.RESULT, capsys.readouterr().out) > 0

"""Reproduction of published tables: training runs, resumption and rendering."""

import json
import shutil
from types import ModuleType

import pytest
import torch
from toy_reproduction import run_table

import limner
from limner.apps.reproduce import PublishedRow, PublishedTable, TableColumn, find_table, plan, published_tables, run
from limner.apps.reproduce.render import to_markdown
from limner.apps.reproduce.results import TableComparison
from limner.data.collection import Collection, write_items
from limner.data.examples import Item, ItemSentence
from limner.errors import FeatureError, LimnerError, RunError, SettingsError
from limner.evaluation.gradients import GradientNorms
from limner.features.extract import extract
from limner.layers.cells import build_cell
from limner.layers.stack import has_kernel
from limner.runs.recipe import load_recipe
from limner.training.processes import uses_bf16

TABLE = PublishedTable(
    name="test/table",
    title="A table",
    recipes="kiros2014",
    columns=(
        TableColumn(score="perplexity", label="PPL", digits=2),
        TableColumn(score="sampled_bleu1", label="B-1", digits=3, scale=0.01),
    ),
    datasets=("Theirs",),
    rows=(
        PublishedRow(name="GT2", recipe="gt2", published={"Theirs": {"perplexity": 54.5, "sampled_bleu1": 32.3}}),
        PublishedRow(name="MLBL-B-R", recipe="mlbl-b", image_control="shuffled"),
        PublishedRow(name="MLBL-B", recipe="mlbl-b"),
        PublishedRow(
            name="bow",
            recipe="bow-f",
            alternatives=(("training.optimizer.lr=1.0e-6",), ("training.optimizer.lr=0.05",)),
        ),
    ),
    notes="Notes.",
)
SMALL = ["text.min_count=1", "evaluation.skip_words=0", "evaluation.samples=2", "evaluation.prefix_words=1"]
SMALL += ["evaluation.shortlist=3", "decoding.max_length=8"]
RECIPE_OVERRIDES = {  # settings that the n-gram recipe lacks
    "kiros2014/mlbl-b": [
        "training.epochs=2",
        "training.train_on_val_epochs=2",
        "features.tables=[colour]",
        "model.word_dim=6",
    ],
    "kiros2014/bow-f": ["training.epochs=2", "features.tables=[colour]"],
}


@pytest.fixture
def small(monkeypatch):
    """Use recipes small enough for the tiny collection; count the calls of `train` and `evaluate`."""
    done = {"train": 0, "evaluate": 0}
    monkeypatch.setattr(
        plan, "load_recipe", lambda name, changes: load_recipe(name, [*RECIPE_OVERRIDES.get(name, []), *changes])
    )
    for name in done:
        real = getattr(run, name)

        def counted(*given, real=real, name=name, **more):
            done[name] += 1
            return real(*given, **more)

        monkeypatch.setattr(run, name, counted)
    return done


def test_a_table_is_rendered_and_is_not_made_again(small, tiny, tmp_path):
    made = run_table(TABLE, tiny, tmp_path / "out", overrides=SMALL)
    lines = made.markdown.read_text().splitlines()
    assert lines[2] == f"| {tiny.path.name} | PPL | B-1 | PPL, Theirs | B-1, Theirs |"
    cells = {line.split("|")[1].split(" (")[0].strip(): cells_of(line) for line in lines[4:8]}
    assert list(cells) == ["GT2", "MLBL-B-R", "MLBL-B", "bow"]
    assert cells["GT2"][2:] == ["54.50", "0.323"]
    assert cells["MLBL-B"][2:] == ["–", "–"]
    scores = {result.row: result.scores for result in made.results}
    assert cells["MLBL-B"][0] == f"{scores['MLBL-B']['perplexity'].value:.2f}"
    mean, std = (scores["MLBL-B"][name].value / 100 for name in ("sampled_bleu1", "sampled_bleu1_std"))
    assert cells["MLBL-B"][1] == f"{mean:.3f} ± {std:.3f}"
    plain = json.loads(made.json.read_text())
    assert [row["row"] for row in plain["rows"]] == list(cells)
    assert {path.name for path in made.figures} == {"text_to_image.png", "image_to_text.png"}
    assert all(path.stat().st_size > 5000 for path in made.figures)
    before = dict(small)
    assert before == {"train": 5, "evaluate": 4}
    again = run_table(TABLE, tiny, tmp_path / "out", overrides=SMALL)
    assert small == before
    assert again.markdown.read_text() == made.markdown.read_text()
    results = {result.row: result for result in made.results}
    control, right, chosen = (results[name] for name in ("MLBL-B-R", "MLBL-B", "bow"))
    assert (control.run, control.evaluation.image_control) == (right.run, "shuffled")
    assert control.scores["perplexity"].value != right.scores["perplexity"].value
    assert (chosen.run, chosen.recipe["training"]["optimizer"]["lr"]) == ("runs/bow-f-2", 0.05)  # by val perplexity


def cells_of(line):
    return [cell.strip() for cell in line.split("|")[2:-1]]


def names_in(made):
    return [line.split("|")[1].strip() for line in made.markdown.read_text().splitlines()[4 : 4 + len(made.results)]]


def test_an_interrupted_reproduction_is_resumed(small, tiny, tmp_path, monkeypatch):
    real, calls = run.evaluate, []

    def stop(*given, **more):
        calls.append(more)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*given, **more)

    monkeypatch.setattr(run, "evaluate", stop)
    with pytest.raises(KeyboardInterrupt):
        run_table(TABLE, tiny, tmp_path / "out", overrides=SMALL)
    assert "| GT2 (" in (tmp_path / "out" / "table.md").read_text()
    made = run_table(TABLE, tiny, tmp_path / "out", overrides=SMALL)
    assert [result.row for result in made.results] == ["GT2", "MLBL-B-R", "MLBL-B", "bow"]
    assert len(calls) == 2 + 3  # the interrupted row and the two after it


def test_rows_with_other_settings_or_data_are_rejected(small, tiny, own_tiny, tmp_path):
    run_table(TABLE, tiny, tmp_path / "out", overrides=SMALL, rows=["GT2"])
    with pytest.raises(RunError, match="other settings"):
        run_table(TABLE, tiny, tmp_path / "out", overrides=[*SMALL, "model.order=1"], rows=["GT2"])
    write_items(own_tiny.path, [Item("more", "train", sentences=(ItemSentence("en", "one more wall"),))])
    before = dict(small)
    for row in ("GT2", "bow"):  # the stored row, or another row of the table
        with pytest.raises(RunError, match=r"gt2\.json: made from another collection"):
            run_table(TABLE, Collection.open(own_tiny.path), tmp_path / "out", overrides=SMALL, rows=[row])
    assert small == before


def test_a_row_with_other_features_is_rejected(small, own_tiny, backbone_of, tmp_path):
    out = tmp_path / "out"
    (first,) = run_table(TABLE, own_tiny, out, overrides=SMALL, rows=["MLBL-B"]).results
    record_file = out / "rows" / "mlbl-b.json"
    stored = json.loads(record_file.read_text())
    assert stored["features"] == list(first.features) != []
    shutil.rmtree(own_tiny.path / "features" / "colour.lance")
    extract(own_tiny, backbone_of(version="2"))
    with pytest.raises(RunError, match=rf"mlbl-b\.json: made from other features \({first.features[0]};"):
        run_table(TABLE, own_tiny, out, overrides=SMALL, rows=["MLBL-B"])


def test_differences_from_the_recipe_are_rendered_beside_the_name(small, tiny, tmp_path):
    changes = [*SMALL, "training.pretrained_embeddings=null", "description=Not as the paper has it, at all"]
    made = run_table(TABLE, tiny, tmp_path / "out", overrides=changes, rows=["GT2"], budget=0.5)
    (name,) = names_in(made)
    differences = [*SMALL, "training.pretrained_embeddings=null", "description=…", "budget 0.5"]
    assert name == f"GT2 ({'; '.join(differences)})"
    assert json.loads(made.json.read_text())["rows"][0]["overrides"] == changes
    assert made.results[0].recipe_folder == "kiros2014"
    own = made.results[0].model_copy(update={"overrides": (), "budget": 1.0})
    assert "| GT2 |" in to_markdown(TABLE, [own], TableComparison())
    other = own.model_copy(update={"recipe_folder": "kiros2014/adamw", "overrides": ("text.level=bpe",), "budget": 0.1})
    assert "| GT2 (kiros2014/adamw; text.level=bpe; budget 0.1) |" in to_markdown(TABLE, [other], TableComparison())


def test_the_alternative_is_selected_with_the_first_seed(small, tiny, tmp_path):
    made = run_table(TABLE, tiny, tmp_path / "out", overrides=SMALL, rows=["bow"], seeds=2)
    assert [result.run for result in made.results] == ["runs/bow-f-2", "runs/bow-f-2-seed2"]
    rates = [(result.seed, result.recipe["training"]["optimizer"]["lr"]) for result in made.results]
    assert rates == [(1, 0.05), (2, 0.05)]
    assert small == {"train": 3, "evaluate": 2}


@pytest.mark.parametrize(
    ("row", "overrides", "error", "message"),
    [
        (
            "MLBL-B",
            ["evaluation.shortlist=9"],
            SettingsError,
            r"shortlist: expected at most 8, .*evaluation\.shortlist=8",
        ),
        ("MLBL-B", ["features.tables=[mobilenet]"], FeatureError, "no such feature table"),
        ("bow", ["evaluation.skip_words=5"], SettingsError, r"skip_words=5 leaves out .*'val'.*skip_words=0"),
        ("MLBL-B", ["training.weight_decay={nothing: 1.0}"], SettingsError, "'nothing' matches none"),
        ("MLBL-B", ["training.pretrained_embeddings=nowhere.txt"], LimnerError, "nowhere.txt"),
        (
            "GT2",
            ["training.pretrained_embeddings=nowhere.txt"],
            SettingsError,
            "does not support pre-trained word embeddings",
        ),
        ("MLBL-B-R", ["features.tables=[]", "model.variant=LBL"], SettingsError, "uses no images"),
    ],
)
def test_errors_of_the_evaluation_are_raised_before_the_first_training(
    small, tiny, tmp_path, monkeypatch, row, overrides, error, message
):
    """The error is also raised for the last row."""
    recipe = {one.name: f"kiros2014/{one.recipe}" for one in TABLE.rows}[row]
    loaded = plan.load_recipe
    monkeypatch.setattr(
        plan, "load_recipe", lambda name, given: loaded(name, [*given, *(overrides if name == recipe else [])])
    )
    with pytest.raises(error, match=message):
        run_table(TABLE, tiny, tmp_path / "out", overrides=SMALL, rows=["GT2", row])
    assert small == {"train": 0, "evaluate": 0}
    assert not (tmp_path / "out").exists()


def test_a_trained_row_is_evaluated_with_other_settings_without_training_it_again(small, tiny, tmp_path):
    out = tmp_path / "out"
    run_table(TABLE, tiny, out, overrides=SMALL, rows=["MLBL-B"])
    weights = out / "runs" / "mlbl-b" / "model.safetensors"
    before = weights.read_bytes(), weights.stat().st_mtime_ns
    (out / "rows" / "mlbl-b.json").unlink()
    changes = [*SMALL, "evaluation.shortlist=5", "evaluation.samples=3", "decoding.max_length=9"]
    made = run_table(TABLE, tiny, out, overrides=changes, rows=["MLBL-B"])
    assert (weights.read_bytes(), weights.stat().st_mtime_ns) == before
    (result,) = made.results
    assert result.evaluation.retrieval.shortlist == 5
    assert "samples:3" in result.scores["sampled_bleu1"].signature
    assert result.recipe["evaluation"]["shortlist"] == 5
    assert run_table(TABLE, tiny, out, overrides=changes, rows=["MLBL-B"]).results == made.results


def test_an_alternative_recipe_folder_is_used_for_the_rows_it_has(monkeypatch, tiny, tmp_path):
    names = []

    def record_name(name, overrides):
        names.append(name)
        raise SettingsError("enough")

    monkeypatch.setattr(plan, "load_recipe", record_name)
    for row in ("MLBL-B", "bow-f"):
        with pytest.raises(SettingsError, match="enough"):
            run_table(find_table("kiros2014/table1"), tiny, tmp_path / "out", rows=[row], recipes="kiros2014/adamw")
    assert names == ["kiros2014/adamw/mlbl-b", "kiros2014/bow-f"]
    with pytest.raises(SettingsError, match="recipe folder 'kiros': expected one of calixto2016, "):
        run_table(find_table("kiros2014/table1"), tiny, tmp_path / "out", recipes="kiros")


def test_a_budget_reduces_epochs_and_samples_and_is_rendered(small, tiny, tmp_path):
    made = run_table(
        TABLE, tiny, tmp_path / "out", overrides=[*SMALL, "evaluation.samples=10"], rows=["MLBL-B"], budget=0.5
    )
    (result,) = made.results
    assert result.recipe["training"]["epochs"] == 1
    assert result.recipe["evaluation"]["samples"] == 5
    both = run_table(TABLE, tiny, tmp_path / "out", overrides=SMALL, rows=["GT2"])
    one, other = names_in(both)  # in the order of the table
    assert one.startswith("GT2 (")
    assert "budget" not in one
    assert other.startswith("MLBL-B (")
    assert other.endswith("; budget 0.5)")


def test_cells_are_compared_by_their_scores_and_gradients(tiny, tmp_path):
    small = ["text.min_count=1", "features.tables=[colour]", "model.hidden_dim=6", "training.batch_size=16"]
    rows = ["tanh (Elman)", "leaky", "LSTM, peepholes"]
    cells = find_table("lecture/cells")
    made = run_table(cells, tiny, tmp_path / "out", overrides=small, rows=rows, budget=0.1)
    lines = made.markdown.read_text().splitlines()
    assert [line.split("|")[1].split(" (model")[0].split(" (text")[0].strip() for line in lines[4:7]] == rows
    assert all("–" not in cells_of(line)[:2] for line in lines[4:7])
    for result in made.results:
        stored = GradientNorms.load(tmp_path / "out" / result.run / "gradients" / "val.json")
        assert result.gradients == stored
        assert result.scores["gradient_1"].value == stored.curves[0].norms[1]
        assert result.scores["training_minutes"].value == result.seconds / 60
        assert result.evaluation.retrieval is None
    assert [path.name for path in made.figures] == ["gradients.png"]
    assert len({result.scores["gradient_1"].value for result in made.results}) == 3


def test_no_cell_of_the_comparison_trains_with_a_kernel_of_its_own():
    """The training times compare the equations of the cells: kernels of torch exist for some of them only."""
    table = find_table("lecture/cells")
    for row in table.rows:
        recipe = load_recipe(f"{table.recipes}/{row.recipe}", [])
        assert uses_bf16(recipe.training, torch.device("cpu"))
        cell = build_cell(recipe.model.cell, 3, 4)
        with torch.autocast("cpu", torch.bfloat16):
            assert not has_kernel(cell, torch.zeros(1, 2, 3))
        assert ("before" in row.name) == (recipe.model.cell.name == "gru-before")


def test_unknown_rows_and_tables(tiny, tmp_path):
    with pytest.raises(SettingsError, match=r"no row 'GT7' in test/table; expected one of GT2"):
        run_table(TABLE, tiny, tmp_path / "out", rows=["GT7"])
    with pytest.raises(
        SettingsError, match=r"row 'Gupta et al.' of kiros2014/table1 has published .*Back-off GT2, Back"
    ):
        run_table(find_table("kiros2014/table1"), tiny, tmp_path / "out", rows=["Gupta et al."])
    with pytest.raises(SettingsError, match=r"table 'kiros': expected one of kiros2014/table1"):
        find_table("kiros")


@pytest.mark.parametrize("table", published_tables().values(), ids=published_tables())
def test_every_row_has_its_recipe_and_scores_that_are_measured(table):
    for part in [table.for_dataset(dataset) for dataset in table.trained_on] or [table]:
        known = {column.score for column in part.columns}
        ours = {row.name: row for row in part.rows if row.recipe is not None}
        assert ours
        for row in part.rows:
            assert all(set(values) <= known for values in row.published.values())
            assert all(set(marks) <= set(row.published[data]) for data, marks in row.published_marks.items())
        for row in ours.values():
            (*stages, own) = [load_recipe(f"{part.recipes}/{name}", []) for name in (*row.pretraining, row.recipe)]
            for overrides in row.alternatives:
                load_recipe(f"{part.recipes}/{row.recipe}", [*row.changes, *row.evaluation, *overrides])
            assert all(stage.data.lang == own.data.lang for stage in stages)
            assert set(row.baselines) <= set(ours)
            assert own.data.synthetic == 0


@pytest.mark.parametrize("name", ["calixto2017/table1", "calixto2017/table2", "calixto2016/table1"])
def test_small_recipes_differ_from_those_of_the_paper_in_size_only(name):
    table = find_table(name)
    folders = (f"{table.recipes}/small", table.recipes)
    for row in table.rows:
        for name in (*row.pretraining, *([row.recipe] if row.recipe else [])):
            if name.startswith("pbsmt"):
                continue  # counts have no size: the folder of small recipes has none
            small, printed = (load_recipe(f"{folder}/{name}", []) for folder in folders)
            assert small.model.name == printed.model.name
            assert small.model.embedding_dim <= printed.model.embedding_dim
            assert small.data == printed.data
            for setting in ("image", "decoder", "initial_state"):
                assert getattr(small.model, setting, None) == getattr(printed.model, setting, None)


def test_recipes_and_tables_have_the_same_published_scores():
    """The scores of a pre-trained row are stored in the recipe of its last preceding stage, unless rows share it."""
    for table in published_tables().values():
        for row in table.rows:
            if row.recipe is None or row.corpus == "pretraining" or table.datasets != ("Multi30k",):
                continue
            name = row.pretraining[-1] if row.pretraining else row.recipe
            assert load_recipe(f"{table.recipes}/{name}", []).published.values == row.published["Multi30k"]


def test_public_names_are_not_hidden_by_packages():
    """Importing a subpackage sets an attribute of `limner`, which must not replace a function of the same name."""
    assert not [name for _ in range(2) for name in limner.__all__ if isinstance(getattr(limner, name), ModuleType)]

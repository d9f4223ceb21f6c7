"""The page that compares systems, and the option that writes it."""

import re

import pytest
from PIL import Image

import limner.apps.cli.compare  # noqa: F401  (adds the command)
from limner.apps import cli
from limner.apps.report.comparison_page import differing_rows, write_comparison
from limner.evaluation.compare import compare
from limner.evaluation.comparison import ComparisonSettings
from limner.runs.records import EvaluatedItem, Evaluation, LogLine, RunConfig

EVIL = "<script>alert(1)</script>"
SENTENCES = [f"a dog with {number} spots runs on the beach" for number in range(30)]


def _item(number, text, word, image):
    changed = word != "dog" and number % 3 == 0
    hypothesis = text.replace("dog", word) if changed else text
    return EvaluatedItem(
        id=f"item{number}",
        image=image,
        references=(text,),
        hypothesis=hypothesis,
        tokens=hypothesis,
        reference_tokens=(text,),
        sentence_score=50.0 if changed else 100.0,
    )


@pytest.fixture
def runs(tmp_path):
    """Runs `plain` and `tuned`: of the first, every third sentence has a wrong word."""
    image = tmp_path / "dog.png"
    Image.new("RGB", (40, 30)).save(image)

    def make(name, wrong, rate):
        items = tuple(_item(number, text, wrong, str(image)) for number, text in enumerate(SENTENCES))
        facts = {"split": "test", "collection": "c", "fingerprint": "f" * 64, "command": "limner", "seconds": 1.0}
        folder = tmp_path / name
        Evaluation(items=items, **facts).save(folder / "evaluation" / "test.json")
        recipe = {"data": {"lang": "en"}, "training": {"rate": rate, "epochs": 3}, "note": EVIL if rate == 1 else "x"}
        RunConfig(recipe=recipe, provenance={"seed": 1}).save(folder / "config.json")
        log = [LogLine(kind="val", step=10 * n, epoch=n, loss=3.0 / n) for n in (1, 2, 3)]
        (folder / "log.jsonl").write_text("".join(line.model_dump_json() + "\n" for line in log))
        return folder

    return [make("plain", "cat", 1), make("tuned", "dog", 2)]


@pytest.fixture
def page(runs, tmp_path):
    comparison = compare([[run] for run in runs], settings=ComparisonSettings(metrics=("bleu4", "ter"), trials=200))
    return write_comparison(comparison, tmp_path / "page.html").read_text(encoding="utf-8")


def test_the_page_has_scores_sentences_curves_and_the_settings_that_differ(page):
    assert "BLEU-4 ↑" in page and "TER ↓" in page and "100.00 †" in page
    assert page.count('<mark class="wrong">cat</mark>') == page.count("BLEU 50.0")
    assert 'aria-label="Validation loss, nats per token of plain, tuned against updates"' in page
    assert "<code>training.rate</code>" in page and "training.epochs" not in page


def test_the_largest_differences_come_first(page):
    groups = re.findall(r'data-groups="([^"]*)"', page)
    assert [name.split()[0] for name in groups[:10]] == ["best"] * 10 and "sample" in groups[-1]
    assert sum("best" in name for name in groups) == 10  # the others have the same sentence


def test_the_page_is_self_contained_and_escaped(page):
    assert not re.search(r'(src|href)="(?!data:image/jpeg;|#)', page)
    assert EVIL not in page and "&lt;script&gt;alert(1)" in page


def test_only_values_that_differ_are_listed():
    assert differing_rows([{"a": "1", "b": "2"}, {"a": "1", "b": "3", "c": "4"}]) == [
        ("b", ["2", "3"]),
        ("c", ["–", "4"]),
    ]


def test_the_command_writes_the_page_and_keeps_files_of_others(runs, tmp_path, capsys, monkeypatch):
    out = tmp_path / "page.html"
    monkeypatch.setattr(
        "sys.argv", ["limner", "compare", *map(str, runs), "--metric", "bleu4", "--trials", "200", "--out", str(out)]
    )
    with pytest.raises(SystemExit, match="0"):
        cli.main()
    assert capsys.readouterr().out.endswith(f"{out}\n") and "Limner comparison" in out.read_text(encoding="utf-8")
    out.write_text("mine")
    with pytest.raises(SystemExit, match="1"):
        cli.main()
    assert out.read_text() == "mine"

"""Records of a run directory, plots and the report."""

import base64
import hashlib
import html
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from limner.apps.report import page as report
from limner.errors import RunError
from limner.features.spec import FeatureSpec
from limner.metrics import Score
from limner.plots import figures
from limner.runs.evaluations import Evaluation, read_evaluations
from limner.runs.records import LogLine, RunConfig, read_log

EVIL = '<script>alert("x")</script> & \'<b>'
VOID = {"meta", "img", "br", "wbr", "path", "use", "rect", "input"}


class Page(HTMLParser):
    """Parser of a page that checks the order of its tags and collects its text, links and ids."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.words, self.urls, self.ids = [], [], [], [], []
        self.source = text
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        self._gather(attrs)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self._gather(attrs)

    def _gather(self, attrs):
        named = dict(attrs)
        self.urls += [named[key] for key in ("src", "href", "xlink:href", "action") if key in named]
        assert not [key for key in named if key.startswith("on")]
        self.ids += [named["id"]] if "id" in named else []

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] not in (["style"], ["script"]):
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def save_image(folder, name, colour):
    path = folder / f"{name}.jpg"
    Image.new("RGB", (400, 300), colour).save(path)
    return str(path)


def make_run(folder):
    """A finished run on forty images; item k has the sentence score k."""
    images = [save_image(folder.parent, f"p{k}", (6 * k, 100, 200 - 5 * k)) for k in range(6)]
    RunConfig(
        recipe={
            "model": {"name": "mrnn", "recurrent": 256, "note": EVIL},
            "training": {"epochs": 3, "betas": [0.9, 0.99]},
            "published": {"row": "Mao et al. (2015)", "values": {"bleu4": 17.0}},
        },
        provenance={
            "collection": "/home/me/data/toy",
            "command": "limner train x --data=/home/me/data/toy",
            "seed": 7,
            "versions": {"limner": "0.1.0"},
            "host": None,
        },
    ).save(folder / "config.json")
    lines = [
        LogLine(step=step, epoch=step / 10, kind="train", loss=5 - step / 20, tokens_per_second=900)
        for step in range(40)
    ]
    validation = {"loss": 3.5, "perplexity": 33.1, "metrics": {"bleu4": 9}}
    lines.append(LogLine(step=40, epoch=4, kind="val", seconds=130, **validation))
    (folder / "log.jsonl").write_text("".join(line.model_dump_json() + "\n" for line in lines))
    items = [
        {
            "id": f"item-{k:02}",
            "image": images[k % 6],
            "references": [f"reference {k}", EVIL],
            "hypothesis": EVIL if k == 39 else f"sentence {k}",
            "log_prob": -3.5,
            "sentence_score": float(k),
        }
        for k in range(40)
    ]
    retrieved = [{"id": f"item-{k:02}", "image": images[k], "right": k == 2} for k in range(5)]
    Evaluation.model_validate(
        {
            "split": "test",
            "collection": "/home/me/data/toy",
            "left_out": 3,
            "fingerprint": "0123456789abcdef",
            "command": f"limner evaluate /home/me/run {EVIL}",
            "seconds": 75,
            "scores": [
                {"name": "bleu4", "value": 21.26, "signature": "n:4|scale:0-100"},
                {"name": "perplexity", "value": 17.031, "signature": "words:10"},
                {"name": "image_to_text_r1", "value": 24.0, "signature": "ties:worst|scale:0-100"},
                {"name": "image_to_text_median_rank", "value": 5.0, "signature": "ties:worst"},
            ],
            "items": items,
            "retrieval": {
                "image_to_text": [
                    {"id": "item-01", "image": images[1], "rank": 2, "top": [{"text": EVIL, "right": True}]}
                ],
                "text_to_image": [{"text": EVIL, "rank": 3, "image_id": "item-02", "top": retrieved}],
                "curves": {"image_to_text": [[0, 0], [1, 1]]},  # of older versions, which stored them
            },
        }
    ).save(folder / "evaluation" / "test.json")
    return folder


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "my run")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    out = report.write_report(make_run(folder / "my run"), folder / "report.html")
    return Page(out.read_text(encoding="utf-8"))


def test_the_report_is_self_contained(page):
    assert "link" not in page.tags and "iframe" not in page.tags
    embedded = ("data:image/jpeg;base64,", "#")
    assert [url for url in page.urls if not url.startswith(embedded)] == []


def test_only_the_script_of_the_report_runs(page):
    assert page.tags.count("script") == 1
    (script,) = re.findall(r'<script type="module">(.*?)</script>', page.source, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page.source)
    policy = html.unescape(policy)
    assert f"script-src 'sha256-{digest}';" in policy and "default-src 'none'" in policy


def test_links_within_the_page_have_a_target(page):
    assert {url[1:] for url in page.urls if url.startswith("#")} - set(page.ids) - {""} == set()


def test_sentences_are_escaped(page):
    # Model settings, command, best sentence, references, query, retrieved sentence.
    assert page.text.count('<script>alert("x")</script> &') >= 6


SHOWN = {
    "scores and published values": (
        *("BLEU-4 21.3 17.0 Perplexity 17.03 –", "R@1 24.0 – Median rank 5 –", "Mao et al. (2015)"),
        *("BLEU-4 n:4| scale:0-100 Perplexity words:10", "R@1 ties:worst| scale:0-100 Median rank ties:worst"),
    ),
    "names in place of absolute paths": (
        *("collection toy", "limner train x --data=toy", "40 images of toy", "limner evaluate run"),
        "Collection toy , fingerprint 0123456789abcdef",
    ),
    "facts and settings": (
        *("seed 7", "versions.limner 0.1.0", "host none", "recurrent 256", "betas 0.9, 0.99"),
        *("training time 2 min 10 s", "900 (median)"),
    ),
    "items without features": ("3 images without features are left out",),
    "relevant results": ("own sentence: 2", "✓ described image, rank 3"),
}


@pytest.mark.parametrize("texts", SHOWN.values(), ids=SHOWN)
def test_the_page_shows(page, texts):
    assert [text for text in texts if text not in page.text] == []
    assert "/home" not in page.text
    assert page.text.count("✓") == 2 + 3  # once in each legend; the described image is also at the end


def test_epochs_on_validation_data_are_not_part_of_the_curves(run, monkeypatch):
    plotted = []
    real = figures.curves
    monkeypatch.setattr(figures, "curves", lambda title, lines, kept: plotted.append(lines) or real(title, lines, kept))
    log = [LogLine(step=s, epoch=s, kind="val", loss=10.0 - s) for s in (1, 2, 3, 4)]
    (run / "log.jsonl").write_text("".join(line.model_dump_json() + "\n" for line in log))
    report.write_report(run, run / "report.html")
    RunConfig(provenance={"train_on_val_epochs": 1}).save(run / "config.json")
    report.write_report(run, run / "report.html")
    assert [[step for step, _ in lines["validation"]] for lines in plotted] == [[1, 2, 3, 4], [1, 2, 3]]


def test_image_controls_are_shown_in_one_table(run):
    (right,) = read_evaluations(run)
    for control, value in (("mean", 3.0), ("shuffled", 4.0)):
        scores = (Score("bleu4", value, "scale:0-100"), Score("text_to_image_r1", value, "scale:0-100"))
        other = right.model_copy(update={"image_control": control, "scores": scores, "command": f"as {control}"})
        other.save(run / "evaluation" / f"test-images_{control}.json")
    right.model_copy(update={"measured": "samples3,shortlist10"}).save(run / "evaluation" / "test-samples3.json")
    page = Page(report.write_report(run, run / "r.html").read_text(encoding="utf-8"))
    assert "Split test Metric right mean shuffled BLEU-4 21.3 3.0 4.0" in page.text
    assert "Text-to-image retrieval: R@1 – 3.0 4.0" in page.text
    assert "as mean" not in page.text  # its examples are not shown
    order = [
        page.text.rindex(words)
        for words in ("Captions: test 40 images", "Captions: test, samples3, shortlist10 40 images")
    ]
    assert order == sorted(order) and order[-1] < page.text.rindex("Image ablations")
    assert page.ids.count("controls") == 1 and "#controls" in page.urls


def make_audio_run(run):
    """The same run on audio files, without images."""
    config = json.loads((run / "config.json").read_text())
    spec = FeatureSpec(
        name="mel", kind="pooled", shape=(5,), backbone="logmel", modality="audio", preprocessing={}, weights_sha256=""
    ).model_dump(mode="json")
    (run / "config.json").write_text(json.dumps({**config, "features": [spec]}))
    path = run / "evaluation" / "test.json"
    stored = json.loads(path.read_text())
    retrieval = stored["retrieval"]
    for one in (*stored["items"], *retrieval["image_to_text"], *retrieval["text_to_image"][0]["top"]):
        one["image"] = None
    path.write_text(json.dumps(stored))
    return run


def test_audio_files_are_not_called_images(run):
    text = Page(report.write_report(make_audio_run(run), run / "r.html").read_text(encoding="utf-8")).text
    assert "40 audio files of toy" in text
    assert "no image" not in text
    assert "Audio-to-text retrieval" in text and "described audio file, rank 3" in text
    strip = text.split("at the end the one that it describes")[1]
    for k in range(5):
        assert f"item-{k:02} reference {k}" in strip


def assert_no_shared_ids(page):
    by_content = re.compile(r"[mpC][0-9a-f_]+")  # the same name is the same shape
    names = [name for name in page.ids if not by_content.fullmatch(name)]
    assert len(names) == len(set(names))


def test_figures_share_no_ids(page):
    assert page.tags.count("svg") == 3  # loss, perplexity, BLEU-4
    assert_no_shared_ids(page)


def test_missing_and_damaged_images_are_left_out(run, tmp_path, caplog):
    (tmp_path / "p0.jpg").unlink()
    (tmp_path / "p1.jpg").write_bytes(b"\xff\xd8 broken")
    text = Page(report.write_report(run, tmp_path / "r.html").read_text(encoding="utf-8")).text
    assert "no image item-00" in text
    assert "over the size limit" in caplog.text


def test_embedded_images_have_a_maximum_size(run, page, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("limner.apps.report.page.IMAGE_BYTES", 3000)
    small = report.write_report(run, tmp_path / "r.html").read_text(encoding="utf-8")
    assert len(small) < len(page.source) - 3000
    assert "over the size limit" in caplog.text


def test_a_run_without_log_or_evaluation_still_has_a_report(tmp_path):
    RunConfig().save(tmp_path / "run" / "config.json")
    text = Page(report.write_report(tmp_path / "run", tmp_path / "r.html").read_text(encoding="utf-8")).text
    assert "limner evaluate" in text


def test_a_folder_without_a_run_is_rejected_and_the_old_report_is_kept(tmp_path):
    out = tmp_path / "report.html"
    out.write_text("old")
    with pytest.raises(RunError, match=r"config\.json"):
        report.write_report(tmp_path, out)
    assert out.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html"]


def test_a_damaged_record_names_the_file_and_the_key(run):
    path = run / "evaluation" / "test.json"
    stored = json.loads(path.read_text())
    stored["items"][3]["hypothesis"] = None
    path.write_text(json.dumps(stored))
    with pytest.raises(RunError, match=r"test\.json: .*items\.3\.hypothesis"):
        read_evaluations(run)


def test_an_unfinished_last_line_of_the_log_is_ignored(tmp_path):
    path = tmp_path / "log.jsonl"
    line = '{"step": 1, "epoch": 0.5, "kind": "val", "loss": 2.0, "metrics": {"bleu4": 3.5, "cider": 7.0}}\n'
    path.write_text(line + '{"step": 2, "epo')
    (read,) = read_log(path)
    assert read.metrics == {"bleu4": 3.5, "cider": 7.0}
    assert read.named() == read.metrics
    path.write_text('{"step": 2, "epo\n' + line)
    with pytest.raises(RunError, match=r"log\.jsonl, line 1"):
        read_log(path)


def test_plots_are_reproducible():
    for draw in (
        lambda: figures.curves("Loss", {"training": [(0, 3.0), (1, 2.0)], "validation": []}, kept=1),
        lambda: figures.recall_curves("Retrieval", {"this model": [(0, 0), (0.2, 0.9), (1, 1)]}),
    ):
        figure = draw()
        FigureCanvasAgg(figure).draw()
        assert np.asarray(figure.canvas.buffer_rgba())[..., :3].std() > 1
        markup = figures.svg(draw(), 'a "figure" & <more>')
        assert markup == figures.svg(draw(), 'a "figure" & <more>')
        assert "var(--ink)" in markup and "font-family" not in markup
        assert 'aria-label="a &quot;figure&quot; &amp; &lt;more&gt;"' in markup

"""The records of a run folder, the drawings and the report made from them."""

import base64
import io
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from limner import report
from limner.errors import RunError
from limner.features.spec import FeatureSpec
from limner.metrics import Score
from limner.report import plots
from limner.report.word_map import Neighbours, WordMap
from limner.runs.records import Evaluation, LogLine, RunConfig, read_evaluations, read_log

EVIL = '<script>alert("x")</script> & \'<b>'
VOID = {"meta", "img", "br", "wbr", "path", "use", "rect"}


class Page(HTMLParser):
    """Checks that tags are closed in order, and gathers what a reader and a browser meet."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.words, self.addresses, self.ids = [], [], [], [], []
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
        self.addresses += [named[key] for key in ("src", "href", "xlink:href", "action") if key in named]
        assert not [key for key in named if key.startswith("on")]
        self.ids += [named["id"]] if "id" in named else []

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def picture(folder, name, colour):
    path = folder / f"{name}.jpg"
    Image.new("RGB", (400, 300), colour).save(path)
    return str(path)


def make_run(folder):
    """A finished run on forty pictures; item k scores k."""
    pictures = [picture(folder.parent, f"p{k}", (6 * k, 100, 200 - 5 * k)) for k in range(6)]
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
        LogLine(step=step, epoch=step / 10, kind="train", loss=5 - step / 20, words_per_second=900)
        for step in range(40)
    ]
    validation = {"loss": 3.5, "perplexity": 33.1, "metrics": {"bleu4": 9}}
    lines.append(LogLine(step=40, epoch=4, kind="val", seconds=130, **validation))
    (folder / "log.jsonl").write_text("".join(line.model_dump_json() + "\n" for line in lines))
    items = [
        {
            "id": f"item-{k:02}",
            "image": pictures[k % 6],
            "references": [f"reference {k}", EVIL],
            "hypothesis": EVIL if k == 39 else f"sentence {k}",
            "log_prob": -3.5,
            "sentence_score": float(k),
        }
        for k in range(40)
    ]
    found = [{"id": f"item-{k:02}", "image": pictures[k], "right": k == 2} for k in range(5)]
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
                    {"id": "item-01", "image": pictures[1], "rank": 2, "top": [{"text": EVIL, "right": True}]}
                ],
                "text_to_image": [{"text": EVIL, "rank": 3, "image_id": "item-02", "top": found}],
                "curves": {"image_to_text": [[0, 0], [0.1, 0.7], [1, 1]], "text_to_image": []},
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


def test_the_report_is_one_file_that_asks_nothing_of_anyone(page):
    assert "script" not in page.tags and "link" not in page.tags and "iframe" not in page.tags
    inside = ("data:image/jpeg;base64,", "#")
    assert [address for address in page.addresses if not address.startswith(inside)] == []


def test_sentences_are_words_and_never_markup(page):
    # Model settings, command, best sentence, references, query, found sentence.
    assert page.text.count('<script>alert("x")</script> &') >= 6


def test_scores_stand_with_signature_and_published_row(page):
    assert "BLEU-4 n:4| scale:0-100 21.3 17.0" in page.text
    assert "Perplexity words:10 17.03 –" in page.text
    assert "R@1 ties:worst| scale:0-100 24.0 –" in page.text
    assert "Median rank ties:worst 5 –" in page.text
    assert "Mao et al. (2015)" in page.text


def test_folders_of_the_machine_are_not_told(page):
    assert "collection toy" in page.text and "limner train x --data=toy" in page.text
    assert "images of toy (contents" in " ".join(page.text.split())
    assert "limner evaluate run" in page.text
    assert "/home" not in page.text


def test_what_was_left_out_is_told(page):
    assert "3 more are left out" in page.text


def test_the_model_s_settings_are_told_once(tmp_path):
    RunConfig(model={"hidden_dim": 77}, recipe={"model": {"hidden_dim": 77}}).save(tmp_path / "run" / "config.json")
    text = Page(report.write_report(tmp_path / "run", tmp_path / "r.html").read_text(encoding="utf-8")).text
    assert text.count("77") == 1


def test_a_training_on_validation_data_is_no_part_of_the_validation_curve(run, monkeypatch):
    drawn = []
    monkeypatch.setattr("limner.report.page._learning_curves", lambda log: drawn.append(log) or [])
    log = [LogLine(step=s, epoch=s, kind="val", perplexity=10.0 - s) for s in (1, 2, 3, 4)]
    (run / "log.jsonl").write_text("".join(line.model_dump_json() + "\n" for line in log))
    report.write_report(run, run / "report.html")
    RunConfig(provenance={"train_on_val_epochs": 1}).save(run / "config.json")
    report.write_report(run, run / "report.html")
    assert [[line.step for line in lines] for lines in drawn] == [[1, 2, 3, 4], [1, 2, 3]]


def test_the_curves_say_where_they_end(run):
    log = [LogLine(step=s, epoch=s, kind="train", loss=5.0 - s) for s in (1, 2, 3)]
    (run / "log.jsonl").write_text("".join(line.model_dump_json() + "\n" for line in log))
    RunConfig(provenance={"train_on_val_epochs": 2}).save(run / "config.json")
    text = Page(report.write_report(run, run / "r.html").read_text(encoding="utf-8")).text
    assert "After these curves 2 more epochs learned from training and validation data together" in text


def test_the_right_pictures_come_first_and_controls_stand_beside_each_other(run):
    (right,) = read_evaluations(run)
    for control, value in (("mean", 3.0), ("shuffled", 4.0)):
        scores = (Score("bleu4", value, "scale:0-100"), Score("text_to_image_r1", value, "scale:0-100"))
        other = right.model_copy(update={"pictures": control, "scores": scores, "command": f"as {control}"})
        other.save(run / "evaluation" / f"test-pictures_{control}.json")
    right.model_copy(update={"measured": "samples3,shortlist10"}).save(run / "evaluation" / "test-samples3.json")
    page = Page(report.write_report(run, run / "r.html").read_text(encoding="utf-8"))
    assert "Measured on test Metric right mean shuffled BLEU-4 21.3 3.0 4.0" in page.text
    assert "Images found for a sentence: R@1 – 3.0 4.0" in page.text
    assert "as mean" not in page.text  # nor its pictures
    order = [page.text.rindex(words) for words in ("Results on test 40", "Results on test, samples3, shortlist10 40")]
    assert order == sorted(order) and order[-1] < page.text.rindex("What the images are worth")
    assert page.ids.count("controls") == 1 and "#controls" in page.addresses


def make_sound_run(run):
    """The same run, but of sounds, which have no pictures to show."""
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


def test_sounds_are_named_and_not_called_pictures(run):
    text = Page(report.write_report(make_sound_run(run), run / "r.html").read_text(encoding="utf-8")).text
    assert "40 audio files of toy" in text
    assert "no picture" not in text
    assert "Sentences found for an audio file" in text and "its own audio file at rank 3" in text
    strip = text.split("its own audio file at rank 3")[1]
    for k in range(5):
        assert f"item-{k:02} reference {k}" in strip


def test_facts_and_settings_are_told(page):
    for words in ("seed 7", "versions.limner 0.1.0", "host none", "recurrent 256", "betas 0.9, 0.99"):
        assert words in page.text
    assert "training time 2 min 10 s" in page.text and "900 (median)" in page.text


def test_gallery_shows_best_and_worst_and_a_fair_sample_by_seed(run, tmp_path):
    def sections(seed):
        text = Page(report.write_report(run, tmp_path / "r.html", seed=seed).read_text(encoding="utf-8")).text
        best, fair, worst = re.split("Best By|A fair sample Drawn|Worst By|Recall curves", text)[1:4]
        return [re.findall(r"item-\d\d", part) for part in (best, fair, worst)]

    best, fair, worst = sections(0)
    assert best == [f"item-{k}" for k in range(39, 31, -1)]
    assert worst == [f"item-{k:02}" for k in range(8)]
    assert len(set(fair)) == 12
    again, other = sections(0)[1], sections(1)[1]
    assert again == fair != other


def test_right_answers_are_marked(page):
    assert page.text.count("✓") == 2 + 2  # once in each explanation
    assert "rank 2" in page.text and "rank 3" in page.text


def assert_no_shared_ids(page):
    by_content = re.compile(r"[mpC][0-9a-f_]+")  # the same name is the same shape
    names = [name for name in page.ids if not by_content.fullmatch(name)]
    assert len(names) == len(set(names))


def test_drawings_share_no_ids(page):
    assert page.tags.count("svg") == 4  # loss, perplexity, BLEU-4, one recall curve
    assert_no_shared_ids(page)


def test_missing_and_broken_pictures_leave_a_gap_not_an_error(run, tmp_path, caplog):
    (tmp_path / "p0.jpg").unlink()
    (tmp_path / "p1.jpg").write_bytes(b"\xff\xd8 broken")
    text = Page(report.write_report(run, tmp_path / "r.html").read_text(encoding="utf-8")).text
    assert "no picture item-00" in text
    assert "could not be shown" in caplog.text


def test_pictures_stay_within_the_budget(run, tmp_path, monkeypatch, caplog):
    whole = report.write_report(run, tmp_path / "a.html").stat().st_size
    monkeypatch.setattr("limner.report.page.PICTURE_BYTES", 3000)
    small = report.write_report(run, tmp_path / "b.html").stat().st_size
    assert small < whole - 3000
    assert "could not be shown" in caplog.text


def test_thumbnails_are_small(page):
    sizes = {
        Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))).size
        for address in page.addresses
        if address.startswith("data:")
    }
    assert sizes == {(256, 192), (144, 108)}


def test_a_run_without_log_or_evaluation_still_has_a_report(tmp_path):
    RunConfig().save(tmp_path / "run" / "config.json")
    text = Page(report.write_report(tmp_path / "run", tmp_path / "r.html").read_text(encoding="utf-8")).text
    assert "limner evaluate" in text


def test_what_is_no_run_is_refused_and_the_old_report_stays(tmp_path):
    out = tmp_path / "report.html"
    out.write_text("old")
    with pytest.raises(RunError, match=r"config\.json"):
        report.write_report(tmp_path, out)
    assert out.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html"]


def test_evaluations_come_back_as_they_were_saved(run):
    (evaluation,) = read_evaluations(run)
    assert evaluation.scores[0] == Score("bleu4", 21.26, "n:4|scale:0-100")
    infinite = evaluation.model_copy(update={"scores": (Score("perplexity", float("inf"), "words:1"),)})
    infinite.save(run / "evaluation" / "test.json")
    assert read_evaluations(run) == [infinite]
    stored = json.loads((run / "evaluation" / "test.json").read_text())
    assert stored["scores"][0]["name"] == "perplexity"
    assert stored["retrieval"]["text_to_image"][0]["top"][2] == {
        "id": "item-02",
        "image": evaluation.items[2].image,
        "right": True,
    }


def test_a_damaged_record_names_the_file_and_the_key(run):
    path = run / "evaluation" / "test.json"
    stored = json.loads(path.read_text())
    stored["items"][3]["hypothesis"] = None
    path.write_text(json.dumps(stored))
    with pytest.raises(RunError, match=r"test\.json: .*items\.3\.hypothesis"):
        read_evaluations(run)


def test_log_passes_over_an_unfinished_last_line_only(tmp_path):
    path = tmp_path / "log.jsonl"
    line = '{"step": 1, "epoch": 0.5, "kind": "val", "loss": 2.0, "bleu4": 3.5, "metrics": {"cider": 7.0}}\n'
    path.write_text(line + '{"step": 2, "epo')
    (read,) = read_log(path)
    assert read.metrics == {"bleu4": 3.5, "cider": 7.0}
    assert read.named() == read.metrics
    path.write_text('{"step": 2, "epo\n' + line)
    with pytest.raises(RunError, match=r"log\.jsonl, line 1"):
        read_log(path)


def test_drawings_are_pictures_and_the_same_every_time():
    log = [LogLine(step=s, epoch=0, kind="val", loss=3.0, perplexity=20.0, metrics={"bleu4": s}) for s in (1, 2)]
    for draw in (
        lambda: plots.loss_curves(log),
        lambda: plots.metric_curves("Validation", log, {"bleu4": "BLEU-4", "perplexity": "Perplexity"}),
        lambda: plots.recall_curves("RetrievalResult", {"this model": [(0, 0), (0.2, 0.9), (1, 1)]}),
    ):
        figure = draw()
        FigureCanvasAgg(figure).draw()
        assert np.asarray(figure.canvas.buffer_rgba())[..., :3].std() > 1
        markup = plots.svg(draw(), 'a "drawing" & <more>')
        assert markup == plots.svg(draw(), 'a "drawing" & <more>')
        assert "var(--ink)" in markup and "font-family" not in markup
        assert 'aria-label="a &quot;drawing&quot; &amp; &lt;more&gt;"' in markup


def test_drawing_leaves_no_global_figure():
    from matplotlib._pylab_helpers import Gcf

    plots.svg(plots.recall_curves("RetrievalResult", {"x": [(0, 0), (1, 1)]}), "a curve")
    assert Gcf.get_all_fig_managers() == []


def a_word_map(words):
    random = np.random.default_rng(0)
    positions = {method: random.normal(size=(len(words), 2)) for method in ("tsne", "pca")}
    neighbours = (Neighbours(words[0], 0, tuple(words[1:4])), Neighbours(words[1], 5, (words[0],)))
    return WordMap(tuple(words), tuple(k % 6 for k in range(len(words))), positions, neighbours)


def test_words_are_shown_by_two_maps_and_a_table(run, tmp_path, monkeypatch):
    monkeypatch.setattr("limner.runs.trained_model.load_trained_model", lambda folder: "a model")
    monkeypatch.setattr("limner.report.explanations.explain_items", lambda *given: [])
    monkeypatch.setattr(
        "limner.report.word_map.map_words", lambda checkpoint, seed: a_word_map([EVIL, "cat", "dog", "cow"])
    )
    page = Page(report.write_report(run, tmp_path / "r.html").read_text(encoding="utf-8"))
    assert page.tags.count("svg") == 6
    assert_no_shared_ids(page)
    assert "Words by t-SNE" in page.text and "Words by PCA" in page.text
    assert f"● {' '.join(EVIL.split())} cat, dog, cow" in page.text
    assert "words" in page.ids and "#words" in page.addresses


def test_without_a_model_there_are_no_words_and_a_line_says_why(run, tmp_path, caplog):
    caplog.set_level("INFO", logger="limner.report")
    page = Page(report.write_report(run, tmp_path / "r.html").read_text(encoding="utf-8"))
    assert "words" not in page.ids and "#words" not in page.addresses
    (line,) = [record.message for record in caplog.records if "maps of words" in record.message]
    assert "no model.safetensors" in line


def test_labels_of_a_map_do_not_overlap_and_the_first_words_come_first():
    random = np.random.default_rng(2)
    words = [f"word{k}" for k in range(150)]
    figure = plots.word_map("Words", words, random.normal(size=(150, 2)), [k % 6 for k in range(150)])
    (axes,) = figure.axes
    FigureCanvasAgg(figure).draw()
    boxes = np.array([label.get_window_extent().extents for label in axes.texts])
    over = (boxes[:, None, :2] < boxes[None, :, 2:] - 0.01) & (boxes[None, :, :2] < boxes[:, None, 2:] - 0.01)
    assert over.all(2).sum() == len(boxes)  # each with itself
    shown = [words.index(label.get_text()) for label in axes.texts]
    assert 20 < len(shown) < 150
    assert shown[:3] == [0, 1, 2] and np.mean(shown) < 70
    assert sum(len(line.get_xdata()) for line in axes.get_lines()) == 150
    assert boxes.min() >= 0 and (boxes[:, 2:] <= figure.bbox.size).all()

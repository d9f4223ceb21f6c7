"""Film strips of attention: their geometry, and the commands that draw them."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import limner
from limner.apps.report import attention
from limner.apps.report.page import write_report
from limner.errors import SettingsError
from limner.features.encoders.load import load_backbone
from limner.features.extract import extract
from limner.models.video_captioner import VideoCaptionerSettings
from limner.plots import figures
from limner.plots.attention import AttentionStrip, attention_strips
from limner.runs.evaluations import read_evaluations
from limner.runs.recipe import Recipe
from limner.runs.trained_model import load_trained_model
from limner.training.loop import train


def strip(words, size=(120, 80), gates=None, name=""):
    return AttentionStrip([Image.new("RGB", size, "gray")] * (words + 1), gates, name)


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def boxes(figure):
    """Left, right, top and bottom of each panel in inches, the image first."""
    return np.array([image.get_extent() for image in figure.axes[0].images])[:, [0, 1, 3, 2]]


def test_one_panel_for_the_image_and_each_word_from_left_to_right():
    words = ["a", "dog", "runs", "fast", "<b>", "$x$"]
    figure = attention_strips(words, [strip(6, gates=np.linspace(0, 1, 6))], columns=4)
    panels = boxes(figure)
    assert len(panels) == 7
    assert (np.diff(panels[:4, 0]) > 0).all() and np.ptp(panels[:4, 2]) == 0
    assert panels[4, 0] == panels[0, 0] and panels[4, 2] > panels[3, 3]
    assert texts(figure) == [*words, "β 0.00", "β 0.20", "β 0.40", "β 0.60", "β 0.80", "β 1.00"]
    figure.draw_without_rendering()
    for panel, word, gate in zip(panels[1:], figure.axes[0].texts, figure.axes[0].texts[6:], strict=False):
        (x, above), (same, below) = word.get_position(), gate.get_position()
        assert x == pytest.approx(same) == pytest.approx(panel[:2].mean())
        assert above < panel[2] and below > panel[3]


# With trained models


@pytest.fixture(scope="module")
def runs(tiny, tmp_path_factory):
    """A collection with grids of 2 x 2 locations, and soft and hard attention trained on it."""
    folder = tmp_path_factory.mktemp("strips")
    extract(tiny, load_backbone("pixels:32"))
    sizes = {"embedding_dim": 8, "hidden_dim": 12, "attention_dim": 8, "image_encoder": {"convnet_width": 4}}
    for name, kind, min_count in (("soft", "soft", 1), ("hard", "hard", 1), ("fewer words", "soft", 20)):
        recipe = Recipe.parse(
            {
                "text": {"min_count": min_count},
                "features": {"tables": ["pixels32"]},
                "model": {"name": "show_attend_tell", "attention": kind, **sizes},
                "training": {"epochs": 2, "batch_size": 16, "precision": "fp32"},
                "decoding": {"max_length": 8, "min_length": 3},
            }
        )
        train(recipe, tiny, folder / name)
    return folder


@pytest.fixture
def image(tiny):
    return tiny.image_path(tiny.items("test")[0])


def test_soft_above_hard_through_the_command(runs, image, tmp_path, monkeypatch, command_line):
    drawn = []
    save = figures.save_plot
    monkeypatch.setattr(figures, "save_plot", lambda figure, out: drawn.append(figure) or save(figure, out))
    options = ["--attention", tmp_path / "out", "--compare", runs / "hard"]
    status, printed, _ = command_line("describe", image, image, "--model", runs / "soft", *options)
    lines, tokenizer = printed.splitlines(), load_trained_model(runs / "soft").tokenizer
    assert status == 0
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert "Attention of the captions" in page and re.findall(r'src="([^"]+)', page) == ["1-image.png", "2-image.png"]
    for line, figure, name in zip(lines, drawn, ("1-image.png", "2-image.png"), strict=True):
        words = tokenizer.words(line.split("\t")[1])
        assert texts(figure)[: len(words)] == words
        assert len(figure.axes[0].images) == 1 + 2 * len(words)
        assert {"soft", "hard"} < set(texts(figure)) and sum("β" in text for text in texts(figure)) == len(words)
        assert Image.open(tmp_path / "out" / name).size[0] > 300


def test_hard_attention_is_at_one_location(runs, image):
    captioner = limner.Captioner.load(runs / "hard")
    captions = [captions[0] for captions in captioner.describe([image])]
    (explanation,) = captioner.explain([image], captions)
    assert explanation.gate is None and explanation.attention.shape == (len(explanation.target), 4)
    assert explanation.attention.sum(1) == pytest.approx(1) and explanation.attention.max() < 1  # alpha
    assert (np.sort(explanation.image_weights) == [0, 0, 0, 1]).all()
    assert (explanation.image_weights.argmax(1) == explanation.attention.argmax(1)).all()


def test_a_model_without_attention_is_refused_before_images_are_read(trained, tmp_path, command_line):
    image = tmp_path / "damaged.png"
    image.write_bytes(b"no image")
    status, _, errors = command_line("describe", image, "--model", trained, "--attention", tmp_path / "out")
    (line,) = errors.strip().splitlines()
    assert status == 1 and "model 'mrnn' has no attention over image locations" in line and "show_attend_tell" in line
    assert not (tmp_path / "out").exists()


def test_the_error_of_a_video_captioner_without_attention_names_the_setting(monkeypatch):
    monkeypatch.setattr(attention, "count_locations", lambda model: None)
    recipe = SimpleNamespace(model=VideoCaptionerSettings())
    model = SimpleNamespace(recipe=recipe, config=SimpleNamespace(features=()))
    with pytest.raises(SettingsError, match=r"'video_captioner' .*; train it with model\.frames=attention"):
        attention.require_attention(model, "runs/video")


def test_compared_models_need_attention_and_the_same_vocabulary(runs, trained, image, tmp_path, command_line):
    for options, message in (
        (("--attention", tmp_path / "out", "--compare", trained), f"{trained}.*no attention"),
        (("--attention", tmp_path / "out", "--compare", runs / "fewer words"), "fewer words.*expected the vocabulary"),
        (("--compare", runs / "hard"), "--attention DIR"),
        (("--attention", image), "expected a folder"),
    ):
        status, _, errors = command_line("describe", image, "--model", runs / "soft", *options)
        assert status == 1 and re.search(message, errors)


def test_the_report_shows_film_strips_of_captions(runs, tiny, tmp_path, command_line):
    options = ["--collection", tiny.path, "--metric", "bleu4"]
    assert command_line("evaluate", "--model", runs / "soft", *options)[0] == 0
    (evaluation,) = read_evaluations(runs / "soft")
    page = write_report(runs / "soft", tmp_path / "report.html").read_text(encoding="utf-8")
    shown = re.findall(r'<div class="heat-maps film">(.*?)</div>', page)
    assert 0 < len(shown) <= 6
    tokenizer = load_trained_model(runs / "soft").tokenizer
    captions = {" ".join(tokenizer.words(item.hypothesis)) for item in evaluation.items}
    for one in shown:
        first, *words = re.findall(r"<figcaption>(.*?)</figcaption>", one)
        assert first == "" and " ".join(words) in captions
        assert one.count("<img") == 1 + len(words) and one.count("β") == len(words)

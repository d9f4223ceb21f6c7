import re
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from limner.errors import MediaError
from limner.plots import attention as attention_plots
from limner.plots import figures

# Words with markup or characters of other scripts, and an empty word.
ODD = ["$x$", r"\frac", "$", "<b>", "&amp;", "_", "人", "שלום", ""]


def rendered(figure, dpi=100):
    figure.set_dpi(dpi)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].astype(float)


def texts(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def one_cell(rows, columns, row, column):
    weights = np.full((rows, columns), 0.1 / (rows * columns - 1))
    weights[row, column] = 0.9
    return weights.ravel()


def brightness(image):
    return np.asarray(image.convert("L"), dtype=float)


def centre_of_brightness(image):
    """Column and row of the centre of the brightest pixels, as fractions of the image."""
    values = brightness(image)
    rows, columns = np.nonzero(values >= values.max() - 1)
    return (columns.mean() + 0.5) / values.shape[1], (rows.mean() + 0.5) / values.shape[0]


# The alignment matrix


def test_phrases_are_outlined():
    phrases = [((0, 2), (0, 1)), ((2, 3), (1, 2))]
    figure = attention_plots.alignment(["a", "red", "hat"], ["ein", "Hut"], np.full((2, 3), 0.1), phrases=phrases)
    outlines = [(*one.get_xy(), one.get_width(), one.get_height()) for one in figure.axes[0].patches]
    assert outlines == [(-0.5, -0.5, 2, 1), (1.5, 0.5, 1, 1)]
    words = [str(number) for number in range(attention_plots.MAX_WORDS + 1)]
    weights = np.zeros((len(words), len(words)))
    end = attention_plots.MAX_WORDS
    phrases = [((end - 1, end + 1), (end - 1, end + 1)), ((end, end + 1), (end, end + 1))]
    (outline,) = attention_plots.alignment(words, words, weights, phrases=phrases).axes[0].patches
    assert (outline.get_width(), outline.get_height()) == (1, 1)  # words beyond the limit are not shown


def test_cells_of_an_alignment_are_darker_for_larger_weights():
    weights = np.array([[0.7, 0.26, 0.04], [0.0, 0.1, 0.9]])
    figure = attention_plots.alignment(["a", "red", "hat"], ["ein", "Hut"], weights, gates=[0.126, 0.83])
    assert texts(figure) == [".70", ".26", ".10", ".90"]
    (axes,) = figure.axes
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["ein (0.13)", "Hut (0.83)"]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["a", "red", "hat"]
    for text in list(axes.texts):
        text.remove()
    pixels = rendered(figure).mean(2)
    positions = axes.transData.transform([(column, row) for row in range(2) for column in range(3)]).round().astype(int)
    greys = np.array([pixels[len(pixels) - 1 - y, x] for x, y in positions])
    assert (np.argsort(greys) == np.argsort(-weights.ravel())).all()
    assert greys.max() < 250 and greys.max() - greys.min() > 180


def test_words_with_markup_are_printed_literally():
    figure = attention_plots.alignment(ODD, ODD, np.eye(len(ODD)))
    rendered(figure)  # a missing character would warn, markup would fail
    markup = figures.svg(figure, "words")
    for word in ("$x$", r"\frac", "&lt;b&gt;", "&amp;amp;", "人"):
        assert markup.count(f">{word}</text>") == 2
    assert " id=" not in markup  # ids would clash with those of other figures


# Panels and heat maps


def half_and_half(size=(90, 60)):
    """White on the left, black on the right."""
    image = Image.new("RGB", size, "white")
    image.paste("black", (size[0] // 2, 0, *size))
    return image


@pytest.mark.parametrize(("rows", "columns"), [(14, 14), (7, 7), (3, 5)])
def test_heat_maps_are_brightest_at_the_largest_weight(rows, columns):
    cells = [(0, 0), (rows - 1, columns - 1), (rows // 2, columns - 1), (1, columns // 2)]
    weights = np.stack([one_cell(rows, columns, *cell) for cell in cells])
    first, *shown = attention_plots.panels(Image.new("RGB", (90, 60), "#6a8f50"), weights, (rows, columns))
    assert len(shown) == len(cells) and {image.size for image in shown} == {first.size}
    for image, (row, column) in zip(shown, cells, strict=True):
        across, down = centre_of_brightness(image)
        assert (int(down * rows), int(across * columns)) == (row, column)


def test_panels_of_an_image_file(tmp_path):
    half_and_half().save(tmp_path / "a.png")
    weights = [one_cell(2, 2, 0, 0)]
    from_file = attention_plots.panels(tmp_path / "a.png", weights, (2, 2))
    for one, other in zip(from_file, attention_plots.panels(half_and_half(), weights, (2, 2)), strict=True):
        assert np.array_equal(np.asarray(one), np.asarray(other))
    with pytest.raises(MediaError, match=r"none\.png"):
        attention_plots.panels(tmp_path / "none.png", weights, (2, 2))


# Words coloured by their gate


class Spans(HTMLParser):
    def __init__(self, markup):
        super().__init__()
        self.styles, self.titles, self.words = [], [], []
        self.feed(markup)

    def handle_starttag(self, tag, attrs):
        assert tag == "span"
        self.styles.append(dict(part.split(":") for part in dict(attrs)["style"].split(";")))
        self.titles.append(dict(attrs)["title"])
        self.words.append("")

    def handle_data(self, data):
        if data != " ":
            self.words[-1] += data


def luminance(colour):
    """Of red, green and blue from 0 to 1: WCAG 2.2, "relative luminance"."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)


def of_hex(colour):
    digits = colour[1:] if len(colour) == 7 else "".join(digit * 2 for digit in colour[1:])
    return luminance([int(digits[k : k + 2], 16) / 255 for k in (0, 2, 4)])


def test_words_are_escaped_and_have_their_gate_as_title():
    words = ["Mann", "<script>alert('x')</script>", '"&', "人"]
    spans = Spans(attention_plots.gate_spans(words, [0.83, 0, 1, 0.125]))
    assert spans.words == words
    assert [re.search(r"\d\.\d\d", title).group() for title in spans.titles] == ["0.83", "0.00", "1.00", "0.12"]


def test_open_gates_are_darker_and_all_words_have_a_high_contrast():
    gates = np.linspace(0, 1, 201)
    styles = Spans(attention_plots.gate_spans(["w"] * 201, gates)).styles
    backgrounds = [of_hex(style["background"]) for style in styles]
    assert (np.diff(backgrounds) <= 0).all() and backgrounds[0] > backgrounds[-1] + 0.7
    assert (
        min(contrast(background, of_hex(style["color"])) for background, style in zip(backgrounds, styles, strict=True))
        >= 4.5
    )

"""Figures and examples of the papers and of the lecture, and the commands that make them."""

from __future__ import annotations

from typing import NamedTuple


class PublishedFigure(NamedTuple):
    """A figure or a set of examples."""

    paper: str
    """First part of the names of the paper's tables."""
    number: str
    """Number of the figure, or what the paper calls it."""
    title: str
    commands: tuple[str, ...]
    """Commands that make it, with the placeholders C and RUN; empty if nothing is computed."""
    note: str = ""
    """What the commands write, or why there are none."""

    @property
    def heading(self) -> str:
        """Number and title."""
        return f"{self.number}: {self.title}"


DRAWING = "a drawing of the model, nothing is computed"
SEARCH_IMAGES = 'limner search "a man rides a bicycle" --model RUN --collection C --split train --count 4'
SEARCH_SENTENCES = "limner search photo.jpg --model RUN --collection C --split test --count 1"
KIROS_PREFIX = (
    'limner describe photo.jpg --model RUN --prefix "in this picture there is" --max-length 60 --sample --seed 1'
)
ATTENTION = "limner describe photo.jpg --model RUN --attention strips"
EXAMPLES_NOTE = "the paper's images are of its own data sets; any image can be given"

FIGURES = (
    PublishedFigure("kiros2014", "Figure 1", "the log-bilinear models", (), DRAWING),
    PublishedFigure(
        "kiros2014",
        "Figure 2",
        "retrieval curves",
        ("limner reproduce kiros2014/table1 --collection C --out runs/table1",),
        "writes text_to_image.png and image_to_text.png; the paper prints no values",
    ),
    PublishedFigure(
        "kiros2014",
        "Figures 3 and 5",
        "retrieved descriptions",
        (SEARCH_SENTENCES, "limner report --model RUN"),
        "sentences are ranked by eq. 7 of Mao et al. (2015), not within a shortlist of images by their perplexity; the "
        "report has those of test images of the collection",
    ),
    PublishedFigure("kiros2014", "Figures 3 and 6", "generated descriptions", (KIROS_PREFIX,), EXAMPLES_NOTE),
    PublishedFigure("kiros2014", "Figures 4 and 7", "retrieved training images", (SEARCH_IMAGES,)),
    PublishedFigure(
        "mao2015",
        "Figure 1",
        "generated and retrieved sentences",
        (
            "limner describe photo.jpg --model RUN",
            "limner search photo.jpg --model RUN --collection C --split test --count 2",
        ),
        EXAMPLES_NOTE,
    ),
    PublishedFigure("mao2015", "Figure 2", "the simple RNN and the m-RNN", (), DRAWING),
    PublishedFigure("mao2015", "Figure 3", "versions of the m-RNN", (), f"{DRAWING}; Table 8 compares them"),
    PublishedFigure(
        "mao2015",
        "Figure 4",
        "retrieval curves on IAPR TC-12",
        ("limner reproduce mao2015/table2 --collection C --out runs/table2 evaluation.shortlist=100",),
        "writes text_to_image.png and image_to_text.png; the curves of bow and of MLBL are those of kiros2014/table1",
    ),
    PublishedFigure("calixto2016", "Figure 1", "the doubly-attentive decoder", (), DRAWING),
    PublishedFigure("calixto2017", "Figures 1 and 2", "the conditional GRU and the model", (), DRAWING),
    PublishedFigure(
        "calixto2017",
        "Figure 3",
        "attention over the image and over the source, and the gate β of each word",
        ('limner translate "A man in a hat ." --model RUN --image photo.jpg --attention plots',),
    ),
    PublishedFigure(
        "calixto2017",
        "Section 5.2",
        "shares of words with β above 0.5 and 0.8 (20 % and 8 %)",
        ("limner evaluate --model RUN --collection C",),
        "prints gate_above_0.5 and gate_above_0.8",
    ),
    PublishedFigure(
        "lecture",
        "Figure 23",
        "beam search with two hypotheses",
        ("limner describe photo.jpg --beam-size 2 --explain-beam tree.png",),
    ),
    PublishedFigure(
        "lecture",
        "Show and Tell",
        "captions with their log-probabilities",
        (
            "limner reproduce vinyals2015/table4 --collection C --out runs/table4",
            "limner describe photo.jpg --model RUN --json",
        ),
        EXAMPLES_NOTE,
    ),
    PublishedFigure(
        "lecture",
        "Show, Attend and Tell: Figures 2, 3 and 5",
        "soft and hard attention for each word",
        (f"{ATTENTION} --compare RUN2",),
        "RUN is one of soft attention, RUN2 one of hard attention, both of xu2015/table1",
    ),
    PublishedFigure(
        "lecture",
        "DenseCap",
        "regions and their descriptions",
        ("limner regions photo.jpg --model RUN --out regions.png",),
        "RUN is one of johnson2016/table1",
    ),
    PublishedFigure(
        "lecture",
        "Videos to sentences",
        "pre-training on photographs, then on videos",
        (
            "limner train venugopalan2015/photos --collection PHOTOS --out runs/photos",
            "limner train venugopalan2015/videos --collection VIDEOS --init runs/photos --out runs/videos",
            "limner describe clip.mp4 --model runs/videos",
        ),
        "without the factor graph model of other authors",
    ),
    PublishedFigure(
        "lecture",
        "Sentiment analysis",
        "one output for a sequence",
        (
            "limner generate reviews collections/reviews",
            "limner train lecture/reviews --collection collections/reviews --out runs/reviews",
        ),
        "lecture/sentiment is the recipe for film reviews of your own",
    ),
    PublishedFigure(
        "lecture",
        "Activity recognition",
        "one output for a video",
        (
            "limner generate clips collections/clips",
            "limner features collections/clips --backbone pixels:32 --frames 16",
            "limner train lecture/activity --collection collections/clips --out runs/activity",
        ),
    ),
    PublishedFigure(
        "lecture",
        "Object tracking",
        "one output for each frame",
        ("limner train lecture/tracking --collection collections/clips --out runs/tracking",),
    ),
    PublishedFigure(
        "lecture",
        "Speech recognition",
        "one output for each frame of sound",
        (
            "limner generate sound-sequences collections/sounds",
            "limner features collections/sounds --backbone logmel:62",
            "limner train lecture/sounds --collection collections/sounds --out runs/sounds",
        ),
        "classes of sounds; words of speech are not recognised",
    ),
    PublishedFigure(
        "lecture",
        "Language and Markov models",
        "probabilities of the next word",
        (
            "limner train kiros2014/gt2 --collection C --out runs/bigrams",
            "limner train lecture/hmm --collection C --out runs/hmm",
            "limner train lecture/rnn --collection C --out runs/rnn",
        ),
    ),
    PublishedFigure(
        "lecture",
        "Long-term dependencies",
        "gradients through time of different cells",
        ("limner reproduce lecture/cells --collection C --out runs/cells",),
        "writes gradients.png",
    ),
)
"""Figures in the order of the papers."""
PLACEHOLDERS = "C is the folder of a collection, RUN a folder in runs/ of the reproduced table."
"""Meaning of the words in capitals in the commands."""


def figures_of(paper: str) -> list[PublishedFigure]:
    """Return the figures of a paper, given by the first part of the names of its tables."""
    return [figure for figure in FIGURES if figure.paper == paper]

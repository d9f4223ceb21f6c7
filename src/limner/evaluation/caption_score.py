"""`caption_score`: how well a caption describes an image, fitted to judgements of people, without or with references.

Shapes: N pairs of an image and a caption, K training images, M their captions, J joint space, D feature size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

from limner.data.collection import Collection
from limner.data.examples import Item
from limner.errors import CollectionError, FeatureError
from limner.evaluation.correlate import Judgements, PairScores, judged_pairs
from limner.features.store import FeatureStore, FeatureTable
from limner.files import read_bytes
from limner.inference.image_searcher import JOINT, ImageSearcher
from limner.metrics import Score
from limner.progress import Progress, StageProgress
from limner.retrieval.marginal import DIGITS, MARGINAL_SEED
from limner.runs.concepts import FLOOR, Vector, pooled_vector
from limner.runs.concepts import WEIGHTS as CONCEPT_WEIGHTS
from limner.runs.evaluations import Evaluation
from limner.runs.pretrained import pretrained_run
from limner.runs.recipe import DataSettings

TRAINING_IMAGES = 10_000
"""Largest number of training images whose captions a caption is compared with."""
IMAGE_SHARPNESS, CAPTION_SHARPNESS = 18.0, 14.0
"""Factors of the cosines of images and of captions in the kernel density."""


WEIGHTS = {"caption_score": (-4.60, 0.55, 0.37, 3.73), "ref_caption_score": (-8.00, 0.16, 0.31, 0.13, 8.86)}
"""Weights b_0, b_A, b_B, b_C and b_R of each score: logistic regressions of the share of yes of all Flickr8k-CF."""


class CaptionScorer:
    """Scores of captions by the joint space and the concepts of the built-in captioner and by the captions of a split.

    With the unit vectors u(w) and v(I) of the joint space, the training images I_k with their captions w_kj, and the
    concepts c that a caption w names,

        A(w, I) = log sum_k a_k(I) g_k(w) - log mean_k g_k(w),    g_k(w) = mean_j exp(14 u(w) · u(w_kj)),
                                                                  a(I) = softmax_k(18 v(I) · v(I_k))
        B(w, I) = mean_c (log p(c | I) - log mean_k p(c | I_k)), 0 without a concept
        C(w, I) = u(w) · v(I) - mean_k u(w) · v(I_k)
        caption_score(w, I) = 100 sigmoid(b_0 + b_A A + b_B B + b_C C)
        ref_caption_score(w, I) = 100 sigmoid(b_0 + b_A A + b_B B + b_C C + b_R max_r u(w) · u(r)), other weights b

    for references r. A is log P(w|I) - log P(w), the score of a captioning model (`limner.retrieval.marginal`), of a
    kernel density over the captions of similar images. The weights b are `WEIGHTS`.
    """

    def __init__(self, collection: Collection, split: str, lang: str) -> None:
        """Read the captions and the features of at most `TRAINING_IMAGES` images of a training split.

        `features` are the features of the collection, and `signature` names all that the scores depend on.

        Raises:
            CollectionError: the split has no image with features and a caption in the language.
            FeatureError: the collection has no features of the built-in backbone.
            SettingsError: there is no built-in captioner of the language.
        """
        pretrained_run(lang)  # `ImageSearcher` takes English for a language without a built-in captioner
        self._searcher = ImageSearcher(lang)
        self.features = open_builtin_features(collection, self._searcher)
        items = [item for item in collection.items(split) if self._has_features(item) and item.texts(lang)]
        if not items:
            raise CollectionError(f"split '{split}': no image with features has a caption in '{lang}'; name another")
        order = np.random.default_rng(MARGINAL_SEED).permutation(len(items))[:TRAINING_IMAGES]
        items = [items[row] for row in sorted(order)]
        features, texts = self._features(items), [item.texts(lang) for item in items]
        self._images = self._searcher.project(features)  # (K, J)
        self._mean_image = self._images.mean(0)
        vector = self._searcher.joint.sentence_vector
        self._captions = np.stack([vector(text) for group in texts for text in group])  # (M, J)
        self._starts = np.cumsum([0, *map(len, texts)])
        self._log_rates = np.log(np.maximum(self._searcher.concepts.of_vectors(features).mean(0), FLOOR))  # (C,)
        self.signature = (
            f"training:{len(items)}:{split}|seed:{MARGINAL_SEED}|collection:{collection.fingerprint()[:DIGITS]}|"
            f"models:{self._digest(lang)}|lang:{lang}|scale:0-100"
        )

    def _digest(self, lang: str) -> str:
        """Digest of the backbone, the joint space, the concepts, and the constants of the score."""
        digest = hashlib.sha256(f"{self._searcher.digest} {WEIGHTS} {IMAGE_SHARPNESS} {CAPTION_SHARPNESS}".encode())
        for path in (f"{JOINT}/model.safetensors", CONCEPT_WEIGHTS):
            digest.update(read_bytes(pretrained_run(lang) / path))
        return digest.hexdigest()[:DIGITS]

    def require(self, items: Iterable[Item]) -> None:
        """Raise FeatureError for an item without features of the built-in backbone."""
        if without := [item.id for item in items if not self._has_features(item)]:
            raise FeatureError(f"item '{without[0]}' has no image with features; caption scores need one")

    def _has_features(self, item: Item) -> bool:
        return item.media_path is not None and self.features.covers(item)

    def score(
        self,
        items: Sequence[Item],
        captions: Sequence[str],
        references: Sequence[Sequence[str]] = (),
        *,
        on_progress: Progress | None = None,
    ) -> Vector:
        """Compute the score of the caption at the same position as each image, (N,), 0-100; 0 for an empty caption.

        Args:
            items: N items of the images.
            captions: N captions.
            references: references of each caption, for `ref_caption_score`; none for `caption_score`.
            on_progress: called with the number of captions done and their total.

        Raises:
            CollectionError: a caption has an empty list of references.
            FeatureError: an image has no features.
        """
        if bare := [caption for caption, group in zip(captions, references, strict=False) if not group]:
            raise CollectionError(f"ref_caption_score: expected references of every caption, found none of '{bare[0]}'")
        images = {item.id: item for item in items}
        features = self._features(list(images.values()))
        projected, probabilities = self._searcher.project(features), self._searcher.concepts.of_vectors(features)
        position = {item_id: row for row, item_id in enumerate(images)}
        rows_of: dict[str, list[int]] = {}
        for row, caption in enumerate(captions):
            if caption.strip():
                rows_of.setdefault(caption, []).append(row)
        bias, *weights = WEIGHTS["ref_caption_score" if references else "caption_score"]
        texts = dict.fromkeys(text for group in references for text in group)
        vectors = {text: self._searcher.joint.sentence_vector(text) for text in texts}
        logits = np.full(len(captions), -np.inf)
        for done, (caption, rows) in enumerate(rows_of.items(), start=1):
            shown, sentence = [position[items[row].id] for row in rows], self._searcher.joint.sentence_vector(caption)
            terms = self._terms(caption, sentence, projected[shown], probabilities[shown])
            if references:
                terms.append(np.array([max(vectors[text] @ sentence for text in references[row]) for row in rows]))
            logits[rows] = bias + np.array(weights) @ np.array(terms)
            if on_progress is not None:
                on_progress(done, len(rows_of))
        with np.errstate(over="ignore"):
            return np.asarray(100 / (1 + np.exp(-logits)))

    def _terms(self, caption: str, sentence: Vector, projected: Vector, probabilities: Vector) -> list[Vector]:
        """Compute A, B and C, (N,), of a caption and N images with their vectors (N, J) and concepts (N, C)."""
        kernel = np.exp(CAPTION_SHARPNESS * (self._captions @ sentence))  # (M,)
        density = np.add.reduceat(kernel, self._starts[:-1]) / np.diff(self._starts)  # (K,)
        similarity = IMAGE_SHARPNESS * (projected @ self._images.T)
        attention = np.exp(similarity - similarity.max(1, keepdims=True))  # (N, K)
        ratio = np.log(attention @ density / attention.sum(1)) - np.log(density.mean())
        evidence = [
            np.log(np.maximum(probabilities[:, columns].max(1), FLOOR)) - self._log_rates[columns].max()
            for columns in map(list, set(self._searcher.concepts.mentions(caption)))
        ]
        concepts = np.mean(evidence, axis=0) if evidence else np.zeros(len(projected))
        return [ratio, concepts, (projected - self._mean_image) @ sentence]

    def _features(self, items: Sequence[Item]) -> Vector:
        """Read pooled features, (I, D)."""
        self.require(items)
        return np.stack([pooled_vector(stored) for stored in self.features.take(items) if stored is not None])


def caption_scorer(collection: Collection, data: DataSettings, items: Iterable[Item]) -> CaptionScorer:
    """Return the scorer of the items of an evaluation; errors as `CaptionScorer`."""
    scorer = CaptionScorer(collection, data.train, data.lang)
    scorer.require(items)
    return scorer


def with_caption_scores(
    evaluation: Evaluation,
    scorer: CaptionScorer,
    collection: Collection,
    names: Sequence[str],
    on_progress: StageProgress,
) -> Evaluation:
    """Add the scores of some names in `CAPTION_SCORES` to the captions of an evaluation."""
    by_id = {item.id: item for item in collection.items(evaluation.split)}
    items, captions = [by_id[item.id] for item in evaluation.items], [item.hypothesis for item in evaluation.items]
    values = {
        name: scorer.score(
            items,
            captions,
            [item.references for item in evaluation.items] if name == "ref_caption_score" else (),
            on_progress=partial(on_progress, name),
        )
        for name in names
    }
    scores = [Score(name, float(column.mean()), scorer.signature) for name, column in values.items()]
    scored = [
        item.model_copy(update={"caption_scores": {name: float(column[row]) for name, column in values.items()}})
        for row, item in enumerate(evaluation.items)
    ]
    return evaluation.model_copy(update={"scores": (*evaluation.scores, *scores), "items": tuple(scored)})


def score_judged_captions(
    collection: Collection, judgements: Judgements, name: str, *, split: str, lang: str, on_progress: StageProgress
) -> PairScores:
    """Score judged pairs by `caption_score`, or by `ref_caption_score` with the other captions of the image.

    Raises:
        CollectionError, FeatureError, SettingsError: see `CaptionScorer`.
    """
    scorer = CaptionScorer(collection, split, lang)
    images, captions, judged = judged_pairs(collection, judgements, scorer.features, lang)
    references: list[list[str]] = []
    if name == "ref_caption_score":
        of_image: dict[str, list[str]] = {}
        for caption in captions:
            of_image.setdefault(caption.rpartition("#")[0], []).append(caption)
        judged = [pair for pair in judged if any(other != pair[1] for other in of_image[pair[0]])]
        others = ([other for other in of_image[image] if other != caption] for image, caption in judged)
        references = [[captions[other].text for other in group] for group in others]
    values = scorer.score(
        [images[image] for image, _ in judged],
        [captions[caption].text for _, caption in judged],
        references,
        on_progress=partial(on_progress, "scoring"),
    )
    scores = dict(zip(judged, values.tolist(), strict=True))
    missing = [pair for pair in judgements.correlated() if pair not in scores]
    return PairScores(scores, missing, f"score:{name}|{scorer.signature}")


def open_builtin_features(collection: Collection, searcher: ImageSearcher) -> FeatureStore:
    """Open the largest table of features of the built-in backbone, pooled before a grid; FeatureError for none."""
    tables = (FeatureTable.open(collection, name) for name in collection.features())
    readable = [table for table in tables if searcher.concepts.reads([table.spec])]
    if not readable:
        raise FeatureError(
            f"{collection.path}: caption scores need features of the built-in backbone; run 'limner features "
            f"{collection.path} --backbone efficientnet-lite2'"
        )
    return FeatureStore([max(readable, key=lambda table: (len(table), table.spec.kind == "pooled"))], collection.path)

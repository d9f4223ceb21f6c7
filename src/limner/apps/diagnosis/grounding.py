"""Agreement of attention over image locations with the boxes of annotated phrases.

After Liu, Mao, Sha and Yuille (2017), "Attention Correctness in Neural Image Captioning", and the pointing game of
Zhang et al. (2016), "Top-down Neural Attention by Excitation Backprop".

Row t of `Output.attention` belongs to the step that reads `target_in[t]` and predicts `target_out[t]`. The token at
position t of a sentence therefore has row t: the attention with which it is generated. Shapes: P phrases, L locations.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import AfterValidator

from limner.apps.diagnosis import annotated_phrases
from limner.apps.diagnosis.annotated_phrases import PhraseSentence, Weights
from limner.apps.diagnosis.conditions import sum_by_item
from limner.bounds import Count
from limner.data.collection import Collection
from limner.data.dataset import Examples, GenerationInput
from limner.decoding.sentence import Sentence
from limner.errors import SettingsError
from limner.evaluation import measurements
from limner.evaluation.measurements import Grounding, GroundingExample, GroundingGroup, GroundingScore
from limner.features.preprocessing import Preprocessing, encoded_box, location_cells
from limner.features.spec import FeatureSpec, grid_of
from limner.inference.explain import explain
from limner.inference.features import open_features
from limner.media.image import image_size
from limner.media.modality import IMAGE
from limner.metrics.base import Statistics, percentage
from limner.metrics.significance import LEVEL, TRIALS, approximate_randomisation, check_trials
from limner.progress import Progress, StageProgress
from limner.runs.records import provenance
from limner.runs.trained_model import TrainedModel

OUTSIDE = "phrases whose boxes are outside the part of the image that the features cover"
CENTRE_SIGMA = 0.25
"""Standard deviation of the Gaussian of the baseline 'centre', as a fraction of each side of the grid."""
EXAMPLES = 6
"""Number of hits and of misses that are kept for the report."""
_CHUNK = 256  # sentences whose attention is held in memory


class GroundingSettings(measurements.MeasurementSettings):
    """Scope of a measurement of grounding."""

    trials: Annotated[Count, AfterValidator(check_trials)] = TRIALS
    """Number of trials of each approximate randomisation test."""


class Observation(NamedTuple):
    """Attention of the model for one phrase."""

    sentence: PhraseSentence
    phrase: annotated_phrases.PhraseWords
    attention: Weights  # mean over the words of the phrase, (L,)
    coverage: annotated_phrases.LocationCoverage
    correctness: float
    """Maximum over the words of the phrase of the mass inside the boxes, Liu et al. (2017), section 3."""


def measure_grounding(
    model: TrainedModel,
    collection: Collection,
    *,
    settings: GroundingSettings | None = None,
    command: str = "limner.measure_grounding",
    on_progress: StageProgress | None = None,
) -> Grounding:
    """Measure whether a model attends to the boxes of a phrase while it generates the phrase.

    The model reads the reference sentences (teacher forcing). The attention of a phrase is the mean of the attention of
    its words; the attention of a word of several subwords is the mean over its subwords.
    """
    began, settings = time.perf_counter(), settings or GroundingSettings()
    on_progress = on_progress or (lambda stage, done, total: None)
    split, reading = settings.split or model.recipe.data.test, partial(on_progress, "reading attention")
    visible, excluded = _collect(model, collection, split, settings.leave_out, reading)
    spec, grid = _find_grid(model, len(visible[0].attention))
    measured = _PhraseMeasurements(visible, grid, settings)
    groups = tuple(measured.groups(partial(on_progress, "testing")))
    hits, misses = measured.examples(collection, Preprocessing.parse(spec.preprocessing, f"features '{spec.name}'"))
    return Grounding(
        split=split,
        lang=model.target.lang,
        features=spec.name,
        grid=grid,
        sentences=len({id(observation.sentence) for observation in visible}),
        excluded={reason: count for reason, count in excluded.items() if count},
        groups=groups,
        hits=hits,
        misses=misses,
        verdict=grounding_verdict(groups[0]),
        **settings.model_dump(include={"trials", "seed"}),
        **provenance(collection, command, began),
    )


def grounding_verdict(group: GroundingGroup) -> str:
    """Summarise in one sentence whether the attention is on the boxes more than the baselines are."""
    model, *baselines = group.scores
    by_name = {score.attention: score for score in baselines}
    mean, uniform, centre = by_name["mean"], by_name["uniform"], by_name["centre"]
    evidence = (
        f"{model.mass:.1f} % of the attention is inside the boxes of the phrases, {mean.mass:.1f} % of the model's "
        f"mean attention (p = {mean.mass_p:.4f}), {uniform.mass:.1f} % of uniform attention (p = {uniform.mass_p:.4f}) "
        f"and {centre.mass:.1f} % of a Gaussian around the centre (p = {centre.mass_p:.4f})."
    )

    def above(baseline: GroundingScore) -> bool:
        return model.mass > baseline.mass and baseline.mass_p is not None and baseline.mass_p < LEVEL

    if above(mean) and above(uniform):
        short = "" if above(centre) else ", but is not more often inside the boxes than the centre of the image"
        return f"The attention follows the phrase{short}: {evidence}"
    if above(uniform):
        return f"The attention prefers the right parts of images, but does not follow the phrase: {evidence}"
    return f"No significant agreement of the attention with the phrases: {evidence}"


class _PhraseMeasurements:
    """Mass and pointing of the model and of the baselines for all phrases."""

    def __init__(self, observations: Sequence[Observation], grid: tuple[int, int], settings: GroundingSettings) -> None:
        self._observations, self._settings = observations, settings
        attention = np.stack([observation.attention for observation in observations])  # (P, L)
        inside = np.stack([observation.coverage.inside for observation in observations])
        centre_inside = np.stack([observation.coverage.centre_inside for observation in observations])
        locations = attention.shape[1]
        maps = {
            "model": attention,
            "uniform": np.full((1, locations), 1 / locations),
            "centre": annotated_phrases.centre_prior(grid, CENTRE_SIGMA)[None],
            "mean": attention.mean(0, keepdims=True),
        }
        self._mass = {name: (weights * inside).sum(1) for name, weights in maps.items()}
        self._pointing = {
            name: annotated_phrases.pointing_hits(np.broadcast_to(weights, attention.shape), centre_inside)
            for name, weights in maps.items()
        }

    def groups(self, on_progress: Progress) -> Iterator[GroundingGroup]:
        """Score all phrases and the phrases of each type, most frequent type first."""
        types = Counter(type_ for observation in self._observations for type_ in observation.phrase.phrase.types)
        names = ["all", *(name for name, _ in sorted(types.items(), key=lambda pair: (-pair[1], pair[0])))]
        for done, name in enumerate(names, start=1):
            kinds = [("all", *observation.phrase.phrase.types) for observation in self._observations]
            rows = [row for row, of_phrase in enumerate(kinds) if name in of_phrase]
            yield GroundingGroup(
                type=name,
                images=len({self._observations[row].sentence.item.id for row in rows}),
                phrases=len(rows),
                correctness=100 * float(np.mean([self._observations[row].correctness for row in rows])),
                scores=tuple(self._score(attention, rows) for attention in self._mass),
            )
            on_progress(done, len(names))

    def _score(self, attention: str, rows: Sequence[int]) -> GroundingScore:
        values = {"mass": self._mass, "pointing": self._pointing}
        scores: dict[str, float | None] = {}
        for name, by_attention in values.items():
            attended, model = (self._statistics(by_attention[key], rows) for key in (attention, "model"))
            scores[name] = percentage(attended.sum(0))
            if attention != "model":
                test = approximate_randomisation(
                    attended, model, percentage, trials=self._settings.trials, seed=self._settings.seed
                )
                scores[f"{name}_p"] = test.p
        return GroundingScore.model_validate({"attention": attention, **scores})

    def _statistics(self, values: Weights, rows: Sequence[int]) -> Statistics:
        """Sum and number of values of each image, (images, 2): phrases of one image are not independent."""
        ids = [self._observations[row].sentence.item.id for row in rows]
        return sum_by_item(np.stack([values[rows], np.ones(len(rows))], axis=1), ids)

    def examples(
        self, collection: Collection, preprocessing: Preprocessing
    ) -> tuple[tuple[GroundingExample, ...], tuple[GroundingExample, ...]]:
        """Choose the best hits and the worst misses by the mass above uniform attention, at most one for an image."""
        gain = self._mass["model"] - self._mass["uniform"]
        order = np.argsort(-gain, kind="stable").tolist()

        def first_of_images(rows: Sequence[int], hit: int) -> tuple[GroundingExample, ...]:
            chosen: dict[str, int] = {}
            for row in (row for row in rows if self._pointing["model"][row] == hit):
                chosen.setdefault(self._observations[row].sentence.item.id, row)
            return tuple(self._example(row, collection, preprocessing) for row in [*chosen.values()][:EXAMPLES])

        return first_of_images(order, 1), first_of_images(order[::-1], 0)

    def _example(self, row: int, collection: Collection, preprocessing: Preprocessing) -> GroundingExample:
        observation = self._observations[row]
        path = collection.image_path(observation.sentence.item)
        return GroundingExample(
            id=observation.sentence.item.id,
            image=str(path.resolve()),
            sentence=observation.sentence.text,
            phrase=observation.phrase.phrase.text,
            types=observation.phrase.phrase.types,
            mass=100 * float(self._mass["model"][row]),
            uniform_mass=100 * float(self._mass["uniform"][row]),
            boxes=observation.phrase.boxes,
            area=encoded_box(image_size(path), preprocessing),
            attention=tuple(round(float(weight), 5) for weight in observation.attention),
        )


def _collect(
    model: TrainedModel, collection: Collection, split: str, leave_out: bool, on_progress: Progress
) -> tuple[list[Observation], Counter[str]]:
    """Measure the phrases whose boxes the features cover; return them and the numbers of other phrases by reason."""
    if not model.model.uses_image or any(spec.modality != IMAGE.name for spec in model.config.features):
        raise _no_attention_error(model)
    features = open_features(model, collection)
    examples = Examples.of_split(collection, split, model.target, features, source=model.source, leave_out=leave_out)
    items = [item for item in examples.items if item.image is not None]
    sentences, excluded = annotated_phrases.find_phrases(items, model.target, model.source)
    if not sentences:
        langs = {sentence.lang for item in collection.items(split) for sentence in item.sentences if sentence.phrases}
        raise SettingsError(
            f"{collection.path}: split '{split}' has no phrase with a box in '{model.target.lang}', the language that "
            f"the model writes (languages with phrases: {', '.join(sorted(langs)) or 'none'}); expected phrases on the "
            "target side, as in a collection made by 'limner import flickr30k-entities' for a model that writes 'en'"
        )
    observations = list(_observe(model, collection, sentences, on_progress))
    visible = [observation for observation in observations if observation.coverage.inside.any()]
    excluded[OUTSIDE] += len(observations) - len(visible)
    if not visible:
        raise SettingsError(f"{collection.path}: split '{split}' has only {OUTSIDE}; use features with resize 'squash'")
    return visible, excluded


def _observe(
    model: TrainedModel, collection: Collection, sentences: Sequence[PhraseSentence], on_progress: Progress
) -> Iterator[Observation]:
    """Run the model on the reference sentences and yield the attention of each phrase."""
    features = open_features(model, collection)
    cells: dict[str, Weights] = {}
    for start in range(0, len(sentences), _CHUNK):
        chunk = sentences[start : start + _CHUNK]
        inputs = [GenerationInput(sentence.item, sentence.source, ()) for sentence in chunk]
        hypotheses = [Sentence(tuple(model.tokenizer.encode(sentence.text)), 0.0, 0.0, True) for sentence in chunk]
        for sentence, explained in zip(chunk, explain(model, inputs, hypotheses, features), strict=True):
            if explained.attention is None:
                raise _no_attention_error(model)
            id_ = sentence.item.id
            if id_ not in cells:
                spec, grid = _find_grid(model, explained.attention.shape[1])
                preprocessing = Preprocessing.parse(spec.preprocessing, f"features '{spec.name}'")
                cells[id_] = location_cells(image_size(collection.image_path(sentence.item)), preprocessing, grid)
            for phrase in sentence.phrases:
                attention = explained.attention[phrase.words]
                coverage = annotated_phrases.cover(cells[id_], phrase.boxes)
                correctness = float((attention @ coverage.inside).max())
                yield Observation(sentence, phrase, attention.mean(0), coverage, correctness)
        on_progress(min(start + _CHUNK, len(sentences)), len(sentences))


def _find_grid(model: TrainedModel, locations: int) -> tuple[FeatureSpec, tuple[int, int]]:
    """Find the feature table with the locations that the model attends to, and its rows and columns."""
    for spec in model.config.features:
        if (grid := grid_of(spec, locations)) is not None:
            return spec, grid
    raise SettingsError(
        f"--grounding: this model attends over {locations} annotations that are not a grid of image locations; "
        "expected a model trained on features of kind 'grid' or on pixels"
    )


def _no_attention_error(model: TrainedModel) -> SettingsError:
    return SettingsError(
        f"--grounding: the model '{model.recipe.model.name}' does not attend over image locations; expected a "
        "model with attention over a grid, such as nmt with model.image=[attention]"
    )

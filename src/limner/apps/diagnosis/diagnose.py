"""Diagnosis of one model on one split: image controls, masked source words, ambiguous words."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from limner.apps.diagnosis.conditions import (
    PERPLEXITY,
    ConditionComparison,
    ConditionOutput,
    DiagnosisSettings,
    item_percentage,
)
from limner.data import source_masks
from limner.data.collection import Collection
from limner.data.dataset import Examples, FeatureSource, GenerationInput
from limner.data.examples import Item
from limner.decoding.sentence import Sentence
from limner.errors import CollectionError, SettingsError
from limner.evaluation import measurements
from limner.evaluation.measurements import Diagnosis
from limner.features.store import FeatureStore
from limner.inference.features import ControlFeatures, control_features, open_features
from limner.metrics import higher_is_better, require_metrics
from limner.metrics.significance import LEVEL, too_few_segments
from limner.progress import StageProgress
from limner.runs.records import provenance
from limner.runs.trained_model import TrainedModel
from limner.storage.outputs import name_or_default
from limner.synthetic.scenes import SENSES
from limner.synthetic.scenes.grammar import NOUNS, WEAK_NOUNS

Conditions = dict[str, FeatureSource | None]
"""Image features by the name of the condition; None for no images."""
SOURCE_LANG = "en"
"""Language of the ambiguous words."""

logger = logging.getLogger(__name__)


def diagnose(
    model: TrainedModel,
    collection: Collection,
    *,
    settings: DiagnosisSettings | None = None,
    command: str = "limner.diagnose",
    on_progress: StageProgress | None = None,
) -> Diagnosis:
    """Measure how much a model uses the image, by comparing its output under several image controls.

    Items without an image are left out if the model uses images. By default the image controls of the test split are
    measured.
    """
    began, settings = time.perf_counter(), settings or DiagnosisSettings()
    on_progress = on_progress or (lambda stage, done, total: None)
    require_metrics(name for name in settings.metrics if name != PERPLEXITY)
    features = open_features(model, collection)
    split = name_or_default(settings.split, model.recipe.data.test, "the split")
    leave_out = settings.leave_out or model.recipe.features.missing == "leave_out"
    examples = _read_examples(model, collection, split, features, leave_out)
    inputs, decoding = examples.generation_inputs(), settings.decoding or model.recipe.decoding
    comparison = ConditionComparison(model, examples, inputs, decoding, settings, on_progress)
    masked = [_mask_inputs(comparison, name) for name in settings.masks]  # all inputs are validated before the work
    conditions = _image_conditions(comparison, collection, features)
    best = {name: comparison.generate(f"{name} images", source) for name, source in conditions.items()}
    outputs = [comparison.measure(name, best[name]) for name in conditions]
    for output in outputs if PERPLEXITY in settings.metrics else ():
        output.metrics.insert(settings.metrics.index(PERPLEXITY), comparison.perplexity(conditions[output.name]))
    image_controls = comparison.compare(outputs, "image controls")
    return Diagnosis(
        split=split,
        decoding=comparison.decoding.signature,
        sentences=len(comparison.inputs),
        image_controls=image_controls,
        masking=tuple(_measure_masking(comparison, inputs, conditions, best[outputs[0].name]) for inputs in masked),
        ambiguity=_measure_ambiguity(comparison, conditions, best),
        signatures={metric.metric: metric.signature for metric in outputs[0].metrics},
        verdict=verdict(image_controls, len({entry.item.id for entry in comparison.inputs})),
        notes=tuple(comparison.examples.tally.lines()),
        **settings.model_dump(include={"trials", "seed"}),
        **provenance(collection, command, began),
    )


def verdict(image_controls: Sequence[measurements.ConditionResult], items: int) -> str:
    """Summarise the effect of the image in one sentence, by the first metric with right and with shuffled images."""
    if len(image_controls) == 1:
        return "The model does not use images."
    right, shuffled = image_controls[:2]
    if not shuffled.scores:
        return "No verdict: none of the metrics could be computed."
    if reason := too_few_segments(items):
        return f"No verdict: {reason}."
    control = shuffled.scores[0]
    reference = next(score for score in right.scores if score.metric == control.metric)
    assert control.p is not None, "every condition but the first is tested"
    evidence = (
        f"{reference.metric} is {reference.value:.2f} with the right images and {control.value:.2f} with shuffled "
        f"images (p = {control.p:.4f}, {shuffled.changed:.1f} % of the sentences change)."
    )
    if control.p >= LEVEL:
        return f"No significant effect of the image: {evidence}"
    if (reference.value > control.value) == higher_is_better(reference.metric):
        return f"The model uses the image: {evidence}"
    return f"The image has an effect, but the right images score worse: {evidence}"


def _read_examples(
    model: TrainedModel, collection: Collection, split: str, features: FeatureStore | None, leave_out: bool
) -> Examples:
    """Read the examples of the split, without items that have no image if the model uses images."""
    examples = Examples.of_split(collection, split, model.target, features, source=model.source, leave_out=leave_out)
    if model.model.uses_image:
        items, tally = [item for item in examples.items if item.media_path is not None], examples.tally
        if not items:
            raise SettingsError(
                f"{collection.path}: split '{split}' has no images to diagnose the use of; choose another --split"
            )
        tally.skip("items without an image", count=len(examples.items) - len(items))
        examples = Examples(items, model.target, features, source=model.source)
        examples.tally = tally
    return examples


def _image_conditions(
    comparison: ConditionComparison, collection: Collection, features: FeatureStore | None
) -> Conditions:
    """Return the image features under each image control; the first condition is the reference."""
    model, items, seed = comparison.model, comparison.examples.items, comparison.settings.seed
    if not model.model.uses_image:
        return {"none": features}
    conditions: Conditions = {"right": features}
    conditions["shuffled"] = control_features(model, collection, features, "shuffled", items, seed)
    try:
        conditions["mean"] = control_features(model, collection, features, "mean", items, seed)
    except (CollectionError, SettingsError) as error:  # no training split, or one without images
        logger.warning("the image control 'mean' is left out: %s", error)
    if model.source is None:  # a caption needs an image
        conditions["zero"] = control_features(model, collection, features, "zero", items, seed)
    else:
        conditions["none"] = None
    return conditions


class MaskedInputs(NamedTuple):
    """The source sentences in which a mask selects at least one word."""

    mask: source_masks.SourceMask
    indices: list[int]  # positions in the sequence of inputs
    masked_words: int
    expected: list[list[source_masks.WordForms]]  # expected target words for each sentence


def _mask_inputs(comparison: ConditionComparison, name: str) -> MaskedInputs:
    model, source = comparison.model, comparison.model.source
    if source is None:
        raise SettingsError(f"mask '{name}': expected a translation model, got a captioning model without source words")
    mask = source_masks.create_mask(name, source.lang, model.recipe.data.lang)
    masked: dict[int, list[str]] = {}
    for index, entry in enumerate(comparison.inputs):
        words = source.tokenizer.words(entry.source or "")
        if selected := [word for word, chosen in zip(words, mask.select(words), strict=True) if chosen]:
            masked[index] = selected
    if not masked:
        raise SettingsError(f"mask '{name}': no word of the {len(comparison.inputs)} source sentences is masked")
    references = {index: model.tokenizer.words(comparison.inputs[index].references[0]) for index in masked}
    expected = [mask.expected_words(selected, references[index]) for index, selected in masked.items()]
    return MaskedInputs(mask, list(masked), sum(map(len, masked.values())), expected)


def _measure_masking(
    comparison: ConditionComparison, masked: MaskedInputs, conditions: Conditions, unmasked: Sequence[Sentence]
) -> measurements.MaskingResult:
    """Translate the masked sentences under several image conditions, and compare with the unmasked sentences."""
    source = comparison.model.source_tokenizer
    assert source is not None, "only translation models have source words to mask"
    model = comparison.model._replace(source_tokenizer=source_masks.MaskedTokenizer(source, masked.mask))
    inputs = [comparison.inputs[index] for index in masked.indices]
    outputs = []
    for name in ("right", "shuffled", "none"):
        if name in conditions:
            stage = f"{masked.mask.name} masked, {name} images"
            best = comparison.generate(stage, conditions[name], inputs, model)
            outputs.append(comparison.measure(name, best, inputs))
    outputs.append(comparison.measure("unmasked", [unmasked[index] for index in masked.indices], inputs))
    expected_words = sum(map(len, masked.expected))
    if expected_words:
        for output in outputs:
            counts = [
                (source_masks.count_recovered(expected, hypothesis.split()), len(expected))
                for expected, hypothesis in zip(masked.expected, output.hypotheses, strict=True)
            ]
            output.metrics.insert(0, item_percentage("recovered", counts, inputs))
    numbers = {"sentences": len(inputs), "masked_words": masked.masked_words, "expected_words": expected_words}
    compared = comparison.compare(outputs, f"{masked.mask.name} masked")
    return measurements.MaskingResult(mask=masked.mask.name, **numbers, conditions=compared)


def _measure_ambiguity(
    comparison: ConditionComparison, conditions: Conditions, best: Mapping[str, Sequence[Sentence]]
) -> measurements.AmbiguityResult | None:
    """Measure the translation of the ambiguous words of generated scenes; None if there are none."""
    model, source = comparison.model, comparison.model.source
    if source is None or source.lang != SOURCE_LANG:
        return None
    words = [source.tokenizer.words(entry.source or "") for entry in comparison.inputs]
    ambiguous = find_ambiguous_inputs(comparison.inputs, words, model.recipe.data.lang)
    swapped = items_of_other_sense(comparison.examples.items, comparison.settings.seed)
    included = [case for case in ambiguous if comparison.inputs[case.position].item.id in swapped]
    if not included:
        return None
    inputs = [comparison.inputs[case.position] for case in included]

    def sense_accuracy(name: str, best: Iterable[Sentence]) -> ConditionOutput:
        hypotheses = [model.tokenizer.decode(hypothesis.tokens) for hypothesis in best]
        pairs = list(zip(hypotheses, included, strict=True))
        correct = [(int(expresses_sense(text, case.correct, case.incorrect)), 1) for text, case in pairs]
        incorrect = [(int(expresses_sense(text, case.incorrect, case.correct)), 1) for text, case in pairs]
        metrics = [item_percentage("correct_sense", correct, inputs), item_percentage("other_sense", incorrect, inputs)]
        return ConditionOutput(name, hypotheses, metrics)

    names = [name for name in ("right", "none") if name in conditions]
    outputs = [sense_accuracy(name, (best[name][case.position] for case in included)) for name in names]
    if (features := conditions.get("right")) is not None:
        hypotheses = comparison.generate("swapped images", ControlFeatures(features, swapped), inputs)
        outputs.insert(1, sense_accuracy("swapped", hypotheses))
    compared, excluded = comparison.compare(outputs, "ambiguous words"), len(ambiguous) - len(included)
    return measurements.AmbiguityResult(sentences=len(included), excluded=excluded, conditions=compared)


class AmbiguousInput(NamedTuple):
    """A source sentence with an ambiguous word, and the target nouns of both senses."""

    position: int  # position in the sequence of inputs
    correct: frozenset[str]  # case-folded target nouns of the sense that the image shows
    incorrect: frozenset[str]  # case-folded target nouns of the other sense


def find_ambiguous_inputs(
    inputs: Sequence[GenerationInput], words: Sequence[Sequence[str]], lang: str
) -> list[AmbiguousInput]:
    """Find the source sentences that contain the ambiguous word of their item's label.

    `words` are the words of each English source sentence. Words whose senses have the same translation (French 'grue')
    are left out.
    """
    ambiguous = []
    for position, (entry, sentence) in enumerate(zip(inputs, words, strict=True)):
        other_label = other_sense_label(entry.item)
        if other_label is None or entry.item.label is None:
            continue
        correct, incorrect = (_nouns(label, lang) for label in (entry.item.label, other_label))
        has_word = other_label.partition(":")[0] in {word.casefold() for word in sentence}
        if has_word and correct and not correct & incorrect:
            ambiguous.append(AmbiguousInput(position, correct, incorrect))
    return ambiguous


def expresses_sense(sentence: str, nouns: frozenset[str], other_nouns: frozenset[str]) -> bool:
    """Whether a tokenised sentence contains a noun of one sense and no noun of the other sense."""
    words = {word.casefold() for word in sentence.split()}
    return bool(words & nouns) and not words & other_nouns


def items_of_other_sense(items: Sequence[Item], seed: int) -> Mapping[str, Item]:
    """Choose for items, by id, a random item of the other sense of the word; items without one are left out."""
    by_label: dict[str, list[Item]] = {}
    for item in items:
        if item.label is not None:
            by_label.setdefault(item.label, []).append(item)
    rng = np.random.default_rng(seed)
    chosen = {}
    for item in items:
        if candidates := by_label.get(other_sense_label(item) or "", []):
            chosen[item.id] = candidates[int(rng.integers(len(candidates)))]
    return chosen


def other_sense_label(item: Item) -> str | None:
    """The label of the other sense, 'bat:club' for 'bat:animal'; None if the item has no sense label."""
    word, _, sense = (item.label or "").partition(":")
    senses = SENSES.get(word, ())
    if sense not in senses:
        return None
    return next(f"{word}:{other_sense}" for other_sense in senses if other_sense != sense)


def _nouns(label: str, lang: str) -> frozenset[str]:
    """All inflected forms of a label's noun that the sentences about scenes use."""
    if lang == "de":
        noun = NOUNS[label].german
        return frozenset({noun.casefold(), f"{noun}n".casefold()} if noun in WEAK_NOUNS else {noun.casefold()})
    return frozenset({NOUNS[label].french}) if lang == "fr" else frozenset()

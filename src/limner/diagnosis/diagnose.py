"""The diagnosis of one model on one split: with other pictures, with hidden words, with words of two meanings."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from limner.data.collection import Collection
from limner.data.dataset import Examples, FeatureSource
from limner.decoding.beam_search import DecodingSettings, Hypothesis
from limner.diagnosis.ambiguity import SOURCE, says, sense_queries, wrong_pictures
from limner.diagnosis.conditions import PERPLEXITY, Note, Shown, Study, share
from limner.diagnosis.contrastive import measure_contrasts, read_contrasts
from limner.diagnosis.masking import Forms, Hiding, Mask, read_mask, recovered
from limner.diagnosis.records import Condition, Diagnosis, Masked, Senses
from limner.errors import CollectionError, SettingsError
from limner.features.sources import ControlFeatures, FeatureStore
from limner.inference.collection_features import control_features, open_features
from limner.metrics import higher_is_better, require_metrics
from limner.runs.trained_model import TrainedModel

DEFAULT_METRICS = ("bleu4", "chrf3", "ter", PERPLEXITY)
"""Those that need no extra and no Java."""
SIGNIFICANT = 0.05

logger = logging.getLogger(__name__)


def diagnose(
    model: TrainedModel,
    collection: Collection,
    *,
    split: str | None = None,
    settings: DecodingSettings | None = None,
    metrics: Sequence[str] = DEFAULT_METRICS,
    masks: Sequence[str] = (),
    contrast: Path | None = None,
    trials: int = 10_000,
    seed: int = 1,
    leave_out: bool = False,
    backbone: str | None = None,
    device: str = "cpu",
    command: str = "limner.diagnose",
    progress: Note | None = None,
) -> Diagnosis:
    """Find out whether a model uses its pictures: what it says with the right ones, with others and with none.

    Args:
        model: one that translates or describes.
        collection: where the split is. Items without a picture are passed over for a model that looks at them.
        split: none for the recipe's test split.
        settings: how to search; none for the recipe's.
        metrics: names of sentence metrics, or 'perplexity'; the verdict goes by the first.
        masks: which source words to hide, see `read_mask`; for models that translate.
        contrast: a file of contrasts, see `read_contrasts`.
        trials: of every approximate randomisation.
        seed: of these, of the shuffle and of the wrong pictures.
        leave_out: go on without the pictures that have no features, as the recipe may say too.
        backbone: where the network is that looks at the files of `contrast`, if it has moved since the training.
        device: that it looks on.
        command: how this was called, for the record.
        progress: told the part of the work, what is done of it and how much it is.

    Raises:
        SettingsError: an unknown metric or mask, a mask that hides nothing or is for no translation, or a split
            without pictures.
        CollectionError: there is no such split, or `contrast` is not as it should be.
        FeatureError: a picture has no features, and `leave_out` is false.
    """
    began = time.perf_counter()
    require_metrics(name for name in metrics if name != PERPLEXITY)
    data = model.recipe.data
    split, settings = split or data.test, settings or model.recipe.decoding
    note = progress or (lambda part, done, total: None)
    features = open_features(model, collection)
    leave_out = leave_out or model.recipe.features.missing == "leave_out"
    examples = Examples.of_split(collection, split, model.target, features, source=model.source, leave_out=leave_out)
    if model.model.uses_image:
        examples = _with_pictures(examples, model, f"{collection.path}: split '{split}'")
    study = Study(model, examples, examples.generation_inputs(), settings, tuple(metrics), trials, seed, note)
    # What can be refused is refused before the work begins.
    hidden = [_hide(study, name) for name in masks]
    contrasts = None if contrast is None else read_contrasts(contrast, model, collection)
    seen = _controls(study, collection, features)
    best = {name: study.answers(f"{name} pictures", pictures) for name, pictures in seen.items()}
    shown = [study.shown(name, best[name]) for name in seen]
    if PERPLEXITY in metrics:
        for one in shown:
            one.measures.insert(metrics.index(PERPLEXITY), study.perplexity(seen[one.name]))
    pictures = study.compare(shown, "pictures")
    masked = [_measure_hidden(study, one, seen, best[shown[0].name]) for one in hidden]
    senses = _measure_senses(study, seen, best)
    contrasted = None
    if contrasts is not None:
        contrasted = measure_contrasts(
            model, contrasts, collection, backbone=backbone, device=device, progress=partial(note, "contrasts")
        )
    return Diagnosis(
        split=split,
        decoding=settings.signature,
        collection=str(collection.path.resolve()),
        fingerprint=collection.fingerprint(),
        command=command,
        seconds=time.perf_counter() - began,
        sentences=len(study.asked),
        pictures=pictures,
        masked=tuple(masked),
        senses=senses,
        contrast=contrasted,
        signatures={measure.name: measure.signature for measure in shown[0].measures},
        trials=trials,
        seed=seed,
        verdict=verdict(pictures),
    )


def verdict(pictures: Sequence[Condition]) -> str:
    """Whether the pictures are used, in a sentence: by the first metric, with the right and with shuffled ones."""
    if len(pictures) == 1:
        return "This model looks at no pictures."
    right, shuffled = pictures[:2]
    if not shuffled.figures:
        return "Nothing can be said about the pictures: none of the metrics could be computed."
    other = shuffled.figures[0]
    own = next(figure for figure in right.figures if figure.metric == other.metric)
    assert other.p is not None, "every condition but the first is tested"
    told = (
        f"{own.metric} is {own.value:.2f} with the right pictures and {other.value:.2f} with shuffled ones "
        f"(p = {other.p:.4f}, {shuffled.changed:.1f} % of the sentences change)."
    )
    if other.p >= SIGNIFICANT:
        return f"It does not show that the pictures are used: {told}"
    better = (own.value > other.value) == higher_is_better(own.metric)
    return f"The pictures are used: {told}" if better else f"The pictures matter, and the right ones are worse: {told}"


def save_diagnosis(diagnosis: Diagnosis, run: Path) -> Path:
    """Write RUN/diagnosis/NAME.json, where the report finds it; of other questions it replaces nothing."""
    path = run / "diagnosis" / f"{diagnosis.name}.json"
    diagnosis.save(path)
    return path


def _with_pictures(examples: Examples, model: TrainedModel, where: str) -> Examples:
    """Without the items that have no picture, which tell nothing about pictures."""
    items = [item for item in examples.items if item.medium is not None]
    if not items:
        raise SettingsError(f"{where} has no pictures, so it cannot tell whether they are used; name another --split")
    return Examples(items, examples.target, examples.features, source=examples.source)


def _controls(study: Study, collection: Collection, features: FeatureStore | None) -> dict[str, FeatureSource | None]:
    """What the model is shown under every condition; the first is what the others are compared with."""
    model, items = study.model, study.examples.items
    if not model.model.uses_image:
        return {"none": features}
    seen: dict[str, FeatureSource | None] = {"right": features}
    seen["shuffled"] = control_features(model, collection, features, "shuffled", items, study.seed)
    try:
        seen["mean"] = control_features(model, collection, features, "mean", items, study.seed)
    except (CollectionError, SettingsError) as error:  # no training split here, or one without pictures
        logger.warning("there is no mean picture to show: %s", error)
    # A description is of something: what has no picture at all is a picture of nothing.
    seen["none"] = None if model.source else control_features(model, collection, features, "zero", items, study.seed)
    return seen


class Hidden(NamedTuple):
    """The sentences in which a mask hides something."""

    mask: Mask
    rows: list[int]
    """Their places among all that is asked."""
    words: int
    """That are hidden."""
    expected: list[list[Forms]]
    """Of each, what its translation should say for them."""


def _hide(study: Study, name: str) -> Hidden:
    model, source = study.model, study.model.source
    if source is None:
        raise SettingsError(f"mask '{name}': this model translates nothing, so there are no source words to hide")
    mask = read_mask(name, source.lang, model.recipe.data.lang)
    hidden: dict[int, list[str]] = {}
    for row, query in enumerate(study.asked):
        words = source.tokenizer.words(query.source or "")
        if away := [word for word, hides in zip(words, mask.hides(words), strict=True) if hides]:
            hidden[row] = away
    if not hidden:
        raise SettingsError(f"mask '{name}': hides no word of the {len(study.asked)} sentences")
    references = {row: model.tokenizer.words(study.asked[row].references[0]) for row in hidden}
    expected = [mask.expects(away, references[row]) for row, away in hidden.items()]
    return Hidden(mask, list(hidden), sum(map(len, hidden.values())), expected)


def _measure_hidden(
    study: Study, hidden: Hidden, seen: Mapping[str, FeatureSource | None], whole: Sequence[Hypothesis]
) -> Masked:
    """Translate the sentences with hidden words, and compare with the whole ones."""
    source = study.model.source_tokenizer
    assert source is not None, "only translation models have hidden words"
    blindfold = study.model._replace(source_tokenizer=Hiding(source, hidden.mask))
    asked = [study.asked[row] for row in hidden.rows]
    shown = []
    for name in ("right", "shuffled", "none"):
        if name in seen:
            best = study.answers(f"{hidden.mask.name} hidden, {name} pictures", seen[name], asked, blindfold)
            shown.append(study.shown(name, best, asked))
    shown.append(study.shown("whole sentence", [whole[row] for row in hidden.rows], asked))
    expected = sum(map(len, hidden.expected))
    if expected:
        for one in shown:
            counts = [
                (recovered(forms, said.split()), len(forms))
                for forms, said in zip(hidden.expected, one.said, strict=True)
            ]
            one.measures.insert(0, share("recovered", counts, asked))
    return Masked(
        mask=hidden.mask.name,
        sentences=len(asked),
        words=hidden.words,
        expected=expected,
        conditions=study.compare(shown, f"{hidden.mask.name} hidden"),
    )


def _measure_senses(
    study: Study, seen: Mapping[str, FeatureSource | None], best: Mapping[str, Sequence[Hypothesis]]
) -> Senses | None:
    """How the ambiguous words of generated scenes are translated; None where there are none."""
    model, source = study.model, study.model.source
    if source is None or source.lang != SOURCE:
        return None
    words = [source.tokenizer.words(query.source or "") for query in study.asked]
    found = sense_queries(study.asked, words, model.recipe.data.lang)
    others = wrong_pictures(study.examples.items, study.seed)
    kept = [one for one in found if study.asked[one.row].item.id in others]
    if not kept:
        return None
    asked = [study.asked[one.row] for one in kept]

    def shown(name: str, answers: Sequence[Hypothesis]) -> Shown:
        said = [model.tokenizer.decode(one.tokens) for one in answers]
        right = [(int(says(text, one.right, one.wrong)), 1) for text, one in zip(said, kept, strict=True)]
        wrong = [(int(says(text, one.wrong, one.right)), 1) for text, one in zip(said, kept, strict=True)]
        return Shown(name, said, [share("right_meaning", right, asked), share("other_meaning", wrong, asked)])

    conditions = [shown(name, [best[name][one.row] for one in kept]) for name in ("right", "none") if name in seen]
    if (pictures := seen.get("right")) is not None:
        swapped = study.answers("swapped pictures", ControlFeatures(pictures, others), asked)
        conditions.insert(1, shown("swapped", swapped))
    return Senses(
        sentences=len(kept), left_out=len(found) - len(kept), conditions=study.compare(conditions, "two meanings")
    )

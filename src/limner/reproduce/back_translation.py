"""Back-translation for rows that train with generated source sentences: a derived collection in the table's folder.

Calixto et al. (2017), section 4: a model of the opposite direction translates the independent descriptions in the
target language. The user's collection is not changed; all rows are evaluated on it.
"""

from __future__ import annotations

from pathlib import Path

from limner.data.collection import Collection
from limner.errors import RunError, SettingsError
from limner.inference.back_translation import BackTranslationSettings, back_translate, run_name, untranslated
from limner.reproduce.derived import RECORD, write_derived
from limner.reproduce.plan import ReproductionJob, TrainingRun, back_translator_run
from limner.runs.recipe import DataSettings
from limner.runs.records import Record
from limner.runs.trained_model import load_trained_model, read_config

FOLDER = "back-translated"
"""Folder of the derived collection."""


class DerivedCollection(Record):
    """What a derived collection was made from."""

    fingerprint: str
    """Fingerprint of the collection that it is a copy of."""
    generated_by: str
    """Name of the run that translated, as its sentences are marked."""


def is_derived(data: DataSettings, collection: Collection) -> bool:
    """Whether a training needs generated source sentences that the collection lacks."""
    if not data.synthetic:
        return False
    pairs = (pair for item in collection.items(data.train) for pair in item.pairs(str(data.source_lang), data.lang))
    return not any(source.generated_by for source, _ in pairs)


def check_back_translation(data: DataSettings, job: ReproductionJob) -> None:
    """Check that the sentences of a derived collection can be generated, and that an existing one fits.

    Raises:
        SettingsError: the table has no model of the opposite direction, or the one given has other languages; or the
            collection has no sentence to translate.
        RunError: the derived collection in the table's folder was made from another collection or by another model.
    """
    if job.settings.back_translator is None and job.table.reverse is None:
        raise SettingsError(
            f"{job.table.name}: data.synthetic={data.synthetic:g} needs generated source sentences, and the table has "
            "no recipe of the opposite direction; name a run that translates with --back-translator RUN"
        )
    source, target = str(data.source_lang), data.lang
    if (run := job.settings.back_translator) is not None:
        translated = read_config(run)[1].data
        if (translated.source_lang, translated.lang) != (target, source):
            raise SettingsError(
                f"--back-translator {run}: translates {translated.source_lang} to {translated.lang}, expected {target} "
                f"to {source}; name a run of that direction"
            )
    require_descriptions(data, job)
    if (path := job.out / FOLDER / RECORD).exists():
        _require_same(DerivedCollection.load(path), job, path)


def require_descriptions(data: DataSettings, job: ReproductionJob) -> None:
    """Check that the training split has sentences in the target language that translate nothing.

    Raises:
        SettingsError: it has none.
    """
    source, target = str(data.source_lang), data.lang
    if not any(untranslated(item, target, source) for item in job.collection.items(data.train)):
        raise SettingsError(
            f"{job.collection.path}: split '{data.train}' has no sentence in '{target}' without a translation in "
            f"'{source}'; import the independent descriptions as well (task 2 of Multi30k)"
        )


def back_translated(data: DataSettings, translator: Path, job: ReproductionJob) -> Collection:
    """Return the derived collection, translating the sentences that have no translation yet.

    Args:
        data: languages and splits of the training.
        translator: run of the opposite direction.
        job: the table and its folder.

    Raises:
        RunError: the derived collection has another origin, or no translation is complete.
    """
    folder = job.out / FOLDER
    derived = DerivedCollection(fingerprint=job.collection.fingerprint(), generated_by=run_name(translator))
    if (folder / RECORD).exists():
        _require_same(DerivedCollection.load(folder / RECORD), job, folder / RECORD, derived.generated_by)
    else:
        write_derived(folder, job.collection.items(), derived, job.collection.path)
    model = load_trained_model(translator)
    settings = BackTranslationSettings(
        split=data.train, decoding=model.recipe.decoding.model_copy(update={"beam_size": 1})
    )
    back_translate(
        [model],
        Collection.open(folder),
        generated_by=derived.generated_by,
        settings=settings,
        on_progress=lambda done, total: job.on_progress("back-translation", done, total),
    )
    if is_derived(data, translated := Collection.open(folder)):
        raise RunError(
            f"{translator}: none of its translations of the descriptions is complete; train it for longer, or name "
            "another run with --back-translator"
        )
    return translated


def translator_of(job: ReproductionJob) -> TrainingRun | Path:
    """The run that translates: one that was given, or the training run of the table's recipe."""
    return back_translator_run(job) if job.settings.back_translator is None else job.settings.back_translator


def _require_same(
    derived: DerivedCollection, job: ReproductionJob, path: Path, generated_by: str | None = None
) -> None:
    """Raise RunError if a derived collection has another origin."""
    if derived.fingerprint != job.collection.fingerprint():
        raise RunError(f"{path}: made from another collection; choose another --out")
    if generated_by not in (None, derived.generated_by):
        raise RunError(
            f"{path}: translated by {derived.generated_by}, not by {generated_by}; use the same --back-translator, or "
            "another --out"
        )

"""Collections that a reproduction derives in the table's folder, for rows that train with other sentences.

Calixto et al. (2017), section 4: a model of the opposite direction translates the independent descriptions in the
target language (back-translation). Section 5.2: models are pre-trained on the pairs of a corpus (WMT'15), or
phrase-based translation adds the pairs, or their target sentences in the language model. The user's collection is not
changed, and all rows are evaluated on it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from limner.apps.reproduce.plan import ReproductionJob, TrainingRun
from limner.apps.reproduce.results import CorpusRecord
from limner.data.collection import FEATURES, Collection, write_items
from limner.data.examples import Item, ItemSentence
from limner.errors import RunError, SettingsError
from limner.files import write_error
from limner.inference.back_translation import BackTranslationSettings, back_translate, run_name, untranslated
from limner.runs.recipe import DataSettings
from limner.runs.records import Record
from limner.runs.trained_model import load_trained_model, read_config
from limner.storage.places import is_remote

BACK_TRANSLATED, WITH_CORPUS = "back-translated", "with-corpus"  # folders of the derived collections
RECORD = "derived.json"  # file of the record in the folder of a derived collection
REPORTED_ITEMS = 1000  # number of items between two reports of progress


class BackTranslatedRecord(Record):
    """Origin of a collection with generated source sentences."""

    fingerprint: str
    """Fingerprint of the collection of the table."""
    generated_by: str
    """Name of the translating run, by which its sentences are marked."""


class WithCorpusRecord(Record):
    """Origin of a collection with the sentence pairs of a corpus."""

    fingerprint: str
    """Fingerprint of the table's collection."""
    corpus: CorpusRecord
    split: str
    """Training split of both collections."""
    source_lang: str
    lang: str


def needs_back_translation(data: DataSettings, collection: Collection) -> bool:
    """Whether a training needs generated source sentences that the collection lacks."""
    if not data.synthetic:
        return False
    pairs = (pair for item in collection.items(data.train) for pair in item.pairs(str(data.source_lang), data.lang))
    return not any(source.generated_by for source, _ in pairs)


def check_back_translation(data: DataSettings, job: ReproductionJob) -> None:
    """Check that a derived collection can be generated, and that an existing derived collection fits."""
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
    if (path := job.out / BACK_TRANSLATED / RECORD).exists():
        _require_same_collection(BackTranslatedRecord.load(path), job, path)


def require_descriptions(data: DataSettings, job: ReproductionJob) -> None:
    """Raise SettingsError if no sentence of the training split in the target language is without a translation."""
    source, target = str(data.source_lang), data.lang
    if not any(untranslated(item, target, source) for item in job.collection.items(data.train)):
        raise SettingsError(
            f"{job.collection.path}: split '{data.train}' has no sentence in '{target}' without a translation in "
            f"'{source}'; import the independent descriptions as well (task 2 of Multi30k)"
        )


def back_translated(data: DataSettings, translator: Path, job: ReproductionJob) -> Collection:
    """Return the derived collection, translating the sentences that have no translation yet."""
    folder = job.out / BACK_TRANSLATED
    derived = BackTranslatedRecord(fingerprint=job.collection.fingerprint(), generated_by=run_name(translator))
    if (path := folder / RECORD).exists():
        stored = BackTranslatedRecord.load(path)
        _require_same_collection(stored, job, path)
        if stored.generated_by != derived.generated_by:
            raise RunError(
                f"{path}: translated by {stored.generated_by}, not by {derived.generated_by}; use the same "
                "--back-translator, or another --out"
            )
    else:
        _write(folder, job.collection.items(), derived, job.collection.path)
    model, collection = load_trained_model(translator), Collection.open(folder)
    decoding = model.recipe.decoding.model_copy(update={"beam_size": 1})
    settings = BackTranslationSettings(data.train, decoding=decoding)
    show = partial(job.on_progress, "back-translation")
    back_translate([model], collection, generated_by=derived.generated_by, settings=settings, on_progress=show)
    if needs_back_translation(data, translated := Collection.open(folder)):
        raise RunError(
            f"{translator}: none of its translations of the descriptions is complete; train it for longer, or name "
            "another run with --back-translator"
        )
    return translated


def with_corpus(training: TrainingRun, job: ReproductionJob) -> Collection:
    """Return the collection of a training with the corpus, which is derived in the table's folder once.

    It has sentences only: all splits of the table's collection, with human translations in the training split, and in
    the training split the corpus, as `training.corpus` says.
    """
    assert training.corpus is not None and job.corpus is not None, "the rows of a corpus are planned with one"
    data, folder = training.recipe.data, job.out / WITH_CORPUS / training.corpus
    record = WithCorpusRecord(
        fingerprint=job.collection.fingerprint(),
        corpus=CorpusRecord.from_collection(job.corpus),
        split=data.train,
        source_lang=str(data.source_lang),
        lang=data.lang,
    )
    if (path := folder / RECORD).exists():
        stored = WithCorpusRecord.load(path)
        require_same_corpus(path, stored.corpus, job)
        if stored != record.model_copy(update={"corpus": stored.corpus}):
            raise RunError(f"{path}: made from another collection, split or languages; choose another --out")
    else:
        _write(folder, _items(training, job.corpus, job), record)
    return Collection.open(folder)


def require_same_corpus(path: Path, stored: CorpusRecord | None, job: ReproductionJob) -> None:
    """Raise RunError if a stored result was made with another corpus than this reproduction has."""
    expected = job.corpus and CorpusRecord.from_collection(job.corpus)
    if (stored and stored.fingerprint) != (expected and expected.fingerprint):
        raise RunError(
            f"{path}: was made with {stored or 'no corpus'}, expected {expected or 'no corpus'}; use the same "
            "--corpus, or another --out"
        )


def _write(folder: Path, items: Iterable[Item], record: Record, features_of: Path | None = None) -> None:
    """Write a derived collection; its record is written last, and a folder without a record is replaced."""
    try:
        if folder.exists():
            shutil.rmtree(folder)  # an interrupted copy, which has no record
        write_items(folder, items)
        if features_of and not is_remote(features_of) and (features := features_of / FEATURES).exists():
            (folder / FEATURES).symlink_to(features.resolve(), target_is_directory=True)
    except OSError as error:
        raise write_error(folder, error) from None
    record.save(folder / RECORD)


def _require_same_collection(stored: BackTranslatedRecord, job: ReproductionJob, path: Path) -> None:
    """Raise RunError if a derived collection was made from another collection."""
    if stored.fingerprint != job.collection.fingerprint():
        raise RunError(f"{path}: made from another collection; choose another --out")


def _items(training: TrainingRun, corpus: Collection, job: ReproductionJob) -> Iterator[Item]:
    data, use = training.recipe.data, training.corpus
    for item in job.collection.iter_items():
        sentences = _translation_pairs(item, data) if item.split == data.train else item.sentences
        if sentences and not (use == "pretraining" and item.split == data.train):
            yield Item(item.id, item.split, sentences=sentences)
    added, total = 0, corpus.splits().get(data.train, 0)
    for number, item in enumerate(corpus.iter_items(data.train)):
        if number % REPORTED_ITEMS == 0:
            job.on_progress("adding the corpus", number, total)
        sentences = _translation_pairs(item, data)
        if use == "sentences":  # target sentences alone, each in a group of its own
            texts = item.texts(data.lang)
            sentences = tuple(ItemSentence(data.lang, text, group) for group, text in enumerate(texts))
        if sentences:
            added += 1
            yield Item(f"corpus:{item.id}", data.train, sentences=sentences)
    job.on_progress("adding the corpus", total, total)
    if not added:
        raise SettingsError(
            f"--corpus {corpus.path}: expected sentences in '{data.source_lang}' with translations in '{data.lang}' in "
            f"split '{data.train}', found none; import such a table of sentence pairs"
        )


def _translation_pairs(item: Item, data: DataSettings) -> tuple[ItemSentence, ...]:
    """Sentences of an item that are human translations of each other."""
    pairs = item.pairs(str(data.source_lang), data.lang)
    kept = {sentence for source, target in pairs if not source.generated_by for sentence in (source, target)}
    return tuple(sentence for sentence in item.sentences if sentence in kept)

"""Rows that train with the sentence pairs of another collection: derived collections in the table's folder.

Calixto et al. (2017), section 5.2: models are pre-trained on the pairs of WMT'15, or phrase-based translation adds the
pairs, or their target sentences in the language model. The validation split is that of the table's collection, and all
rows are evaluated on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from limner.data.collection import Collection
from limner.data.examples import Item, Sentence
from limner.errors import RunError, SettingsError
from limner.reproduce.derived import RECORD, write_derived
from limner.reproduce.plan import CorpusCollection, ReproductionJob, ReproductionSettings, TrainingRun
from limner.reproduce.tables import CorpusRecord, PublishedRow, PublishedTable
from limner.runs.recipe import DataSettings
from limner.runs.records import Record

FOLDER = "with-corpus"
"""Folder of the derived collections."""
REPORTED_ITEMS = 1000
"""Number of items between two reports of progress."""


class DerivedRecord(Record):
    """What a derived collection was made from."""

    fingerprint: str
    """Fingerprint of the table's collection."""
    corpus: CorpusRecord
    split: str
    """Training split of both collections."""
    source_lang: str
    lang: str
    """Target language."""


def open_corpus(rows: Sequence[PublishedRow], settings: ReproductionSettings) -> CorpusCollection | None:
    """Open the collection of sentence pairs, if one of the rows trains with it.

    Raises:
        CollectionError: it is not a collection.
    """
    if settings.corpus is None or not any(row.corpus for row in rows):
        return None
    collection = Collection.open(settings.corpus)
    record = CorpusRecord(name=collection.path.resolve().name, fingerprint=collection.fingerprint())
    return CorpusCollection(collection, record)


def without_corpus(
    rows: Sequence[PublishedRow], table: PublishedTable, settings: ReproductionSettings
) -> list[PublishedRow]:
    """Leave out the selected rows that train with a corpus if none is given.

    Raises:
        SettingsError: one of them was selected by name; or a corpus is given and no selected row trains with it.
    """
    if settings.corpus is not None:
        if not any(row.corpus for row in rows):
            raise SettingsError(
                f"--corpus {settings.corpus}: no selected row of {table.name} trains with it; leave it out, or select "
                "such a row with --row"
            )
        return list(rows)
    selected = [row.name for row in rows if row.corpus] if settings.rows else []
    if selected:
        raise SettingsError(
            f"row '{selected[0]}' of {table.name} trains with the sentence pairs of another collection: add --corpus "
            "DIR, a collection that 'limner import' makes of a table of sentence pairs"
        )
    return [row for row in rows if not row.corpus]


def with_corpus(training: TrainingRun, job: ReproductionJob) -> Collection:
    """Return the collection of a training with the corpus, which is derived in the table's folder once.

    It has sentences alone: those of the table's collection in all splits, of its training split the human translations;
    and in the training split those of the corpus, as `training.corpus` says.

    Raises:
        SettingsError: the corpus has no sentences in the languages of the training.
        CollectionError: the corpus has no training split.
        RunError: the derived collection was made from another collection or corpus.
    """
    assert training.corpus is not None and job.corpus is not None, "the rows of a corpus are planned with one"
    data, folder = training.recipe.data, job.out / FOLDER / training.corpus
    record = DerivedRecord(
        fingerprint=job.collection.fingerprint(),
        corpus=job.corpus.record,
        split=data.train,
        source_lang=str(data.source_lang),
        lang=data.lang,
    )
    if (path := folder / RECORD).exists():
        stored = DerivedRecord.load(path)
        require_same_corpus(str(path), stored.corpus, job)
        if stored != record.model_copy(update={"corpus": stored.corpus}):
            raise RunError(f"{path}: made from another collection, split or languages; choose another --out")
    else:
        write_derived(folder, _items(training, job.corpus.collection, job), record)
    return Collection.open(folder)


def require_same_corpus(where: str, stored: CorpusRecord | None, job: ReproductionJob) -> None:
    """Check that a stored result was made with the corpus of this reproduction.

    Raises:
        RunError: it was made with another one.
    """
    expected = None if job.corpus is None else job.corpus.record
    if (stored and stored.fingerprint) != (expected and expected.fingerprint):
        raise RunError(
            f"{where}: was made with {stored or 'no corpus'}, expected {expected or 'no corpus'}; use the same "
            "--corpus, or another --out"
        )


def _items(training: TrainingRun, corpus: Collection, job: ReproductionJob) -> Iterator[Item]:
    """Items of a derived collection."""
    data, use = training.recipe.data, training.corpus
    for item in job.collection.iter_items():
        sentences = _pairs(item, data) if item.split == data.train else item.sentences
        if sentences and not (use == "pretraining" and item.split == data.train):
            yield Item(item.id, item.split, sentences=sentences)
    added, total = 0, corpus.splits().get(data.train, 0)
    for number, item in enumerate(corpus.iter_items(data.train)):
        if number % REPORTED_ITEMS == 0:
            job.on_progress("adding the corpus", number, total)
        sentences = _targets(item, data) if use == "sentences" else _pairs(item, data)
        if sentences:
            added += 1
            yield Item(f"corpus:{item.id}", data.train, sentences=sentences)
    job.on_progress("adding the corpus", total, total)
    if not added:
        raise SettingsError(
            f"--corpus {corpus.path}: expected sentences in '{data.source_lang}' with translations in '{data.lang}' in "
            f"split '{data.train}', found none; import such a table of sentence pairs"
        )


def _pairs(item: Item, data: DataSettings) -> tuple[Sentence, ...]:
    """Sentences of an item that are human translations of each other."""
    pairs = item.pairs(str(data.source_lang), data.lang)
    kept = {sentence for source, target in pairs if not source.generated_by for sentence in (source, target)}
    return tuple(sentence for sentence in item.sentences if sentence in kept)


def _targets(item: Item, data: DataSettings) -> tuple[Sentence, ...]:
    """Human-written sentences of an item in the target language, each in a group of its own."""
    return tuple(Sentence(data.lang, text, group) for group, text in enumerate(item.texts(data.lang)))

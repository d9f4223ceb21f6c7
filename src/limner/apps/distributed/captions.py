"""Captions of files on a Ray cluster: each unit is a batch of files, which an actor describes as one process would."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from limner.apps.distributed.cluster import connected, run_units
from limner.apps.distributed.journal import Journal, locked_journal
from limner.decoding.sentence import Sentence
from limner.errors import MediaError
from limner.inference.captioner import Captioner
from limner.inference.confidence import WordConfidence
from limner.inference.tags import Tag
from limner.runs.trained_model import sha256
from limner.storage.json_text import to_json


class CaptionJob(NamedTuple):
    """What an actor needs to describe a unit."""

    runs: tuple[Path, ...]
    """Run directories of the models, absolute."""
    backbone: str | None
    files: tuple[str, ...]
    """Files as the user named them."""
    working_folder: Path
    """Folder that relative paths start from."""
    options: Mapping[str, Any]
    """Options of `Captioner.describe_each`."""
    prefix: str | None
    journal: Journal
    device: str

    def open(self) -> Callable[[int], None]:
        """Load the models and their backbone."""
        captioner = Captioner.load(*self.runs, backbone=self.backbone, device=self.device)
        size = self.options["batch_size"]

        def compute(unit: int) -> None:
            files = [self.working_folder / file for file in self.files[unit * size : (unit + 1) * size]]
            stamps = [_stamp(file) for file in files]
            if (finished := self.journal.read(unit)) is not None and finished["stamps"] == stamps:
                return
            prefixes = [self.prefix] * len(files) if self.prefix else None
            described = captioner.describe_each(files, prefixes=prefixes, **self.options)
            results = [_to_fields(result, os.path.join(self.working_folder, "")) for _, result in described]
            self.journal.write(unit, {"results": results, "stamps": stamps})

        return compute


def describe_distributed(
    runs: Sequence[Path],
    files: Sequence[Path],
    address: str,
    journal_folder: Path,
    *,
    backbone: str | None = None,
    device: str = "cpu",
    prefix: str | None = None,
    options: Mapping[str, Any],
) -> Iterator[tuple[Path, list[Sentence] | MediaError]]:
    """Generate captions on a Ray cluster, in the order of the files.

    Finished units stay in the journal until all are done, so that an interrupted command computes only the others, and
    those with a file that has changed since.

    Args:
        runs: run directories of the captioner, which all machines see under the same paths.
        files: images, which they see as well.
        address: see `limner.apps.distributed.cluster.connected`.
        journal_folder: folder for the results of finished units.
        backbone: where the backbone is, if it has moved.
        device: device of each actor.
        prefix: words that every caption starts with.
        options: options of `Captioner.describe_each`, with the batch size.

    Yields:
        Each file with its captions, or with the error that it cannot be read.
    """
    names, folders = tuple(map(str, files)), tuple(run.absolute() for run in runs)
    inputs = hashlib.sha256(to_json([names, str(Path.cwd()), dict(options), prefix, backbone, device]).encode())
    weights = [sha256(run / "model.safetensors") for run in folders]
    size = options["batch_size"]
    with locked_journal(journal_folder.absolute()), connected(address) as cluster:
        journal = Journal.begin(journal_folder.absolute(), {"models": weights, "inputs": inputs.hexdigest()})
        job = CaptionJob(folders, backbone, names, Path.cwd(), dict(options), prefix, journal, device)
        for unit in run_units(cluster, job, -(-len(files) // size)):
            batch = files[unit * size : (unit + 1) * size]
            for file, fields in zip(batch, journal.require(unit)["results"], strict=True):
                yield file, _from_fields(fields)
        journal.remove()


def _stamp(file: Path) -> list[int] | None:
    """Return the size and the time of the last change of a file; None for one that is missing."""
    try:
        found = file.stat()
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns]


def _to_fields(result: list[Sentence] | MediaError, working_folder: str) -> list[Any] | str:
    """Captions as lists of fields; an error as its message, with the path that the user gave."""
    if isinstance(result, MediaError):
        return str(result).replace(working_folder, "")
    return [one._asdict() for one in result]


def _from_fields(fields: list[dict[str, Any]] | str) -> list[Sentence] | MediaError:
    return MediaError(fields) if isinstance(fields, str) else [_caption(one) for one in fields]


def _caption(fields: Mapping[str, Any]) -> Sentence:
    """Return a caption of the journal, as it was generated."""
    numbers = {name: _number(fields[name]) for name in ("log_prob", "score", "confidence", "log_ratio")}
    words = tuple(WordConfidence(word, float(chance), float(ratio)) for word, chance, ratio in fields["words"])
    tuples = {name: tuple(fields[name]) for name in ("tokens", "totals")} | {"words": words}
    tags = {name: _tags(fields[name]) for name in ("tags", "likely_tags")}
    return Sentence(**{**fields, **numbers, **tuples, **tags})


def _tags(rows: Sequence[Sequence[Any]]) -> tuple[Tag, ...]:
    return tuple(Tag(word, float(chance), kind, tuple(words)) for word, chance, kind, words in rows)


def _number(value: float | str | None) -> float | None:
    return None if value is None else float(value)

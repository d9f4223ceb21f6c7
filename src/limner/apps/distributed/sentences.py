"""Sentences on a Ray cluster: a unit is a batch of files or inputs, with the same results as in one process."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from limner.apps.distributed.cluster import Journal, connected, locked_journal, require_folder, run_units
from limner.data.collection import Collection
from limner.data.dataset import FeatureSource, GenerationInput
from limner.decoding.sentence import Sentence
from limner.decoding.settings import DecodingSettings
from limner.errors import MediaError
from limner.features.encoders.transformers import hash_files
from limner.generation.captioning import BaseCaptioner
from limner.inference.captioner import Captioner
from limner.inference.features import open_features
from limner.inference.generate import GENERATION_BATCH_SIZE, Generate, batches_of, generate
from limner.inference.load import load_hub
from limner.progress import Progress
from limner.runs.concepts import Tag
from limner.runs.pretrained import model_type
from limner.runs.trained_model import TrainedModel, load_trained_model
from limner.storage.json_text import to_json

SENTENCES = TypeAdapter(list[Sentence])
"""Validator that restores sentences from their fields in a journal."""
SENTENCES.rebuild(_types_namespace={"Tag": Tag})


class CaptionJob(NamedTuple):
    """Inputs of an actor that describes units."""

    runs: tuple[Path, ...]  # absolute; or the folder of one model of the hub
    loading: Mapping[str, Any]  # of `Captioner.load`, or of `load_hub`
    files: tuple[str, ...]  # as the user named them
    working_folder: Path  # of relative paths
    options: Mapping[str, Any]  # of `Captioner.describe_each`
    prefix: str | None
    journal: Journal

    @property
    def device(self) -> str:
        """Device that the models compute on."""
        return str(self.loading["device"])

    def open(self) -> Callable[[int], None]:
        """Load the models and their backbone, or the model of the hub."""
        if model_type(self.runs[0]) is None:
            captioner: BaseCaptioner = Captioner.load(*self.runs, **self.loading)
        else:
            captioner = load_hub(self.runs[0], tasks=("describe",), **self.loading)
        size = self.options["batch_size"]

        def compute(unit: int) -> None:
            files = [self.working_folder / file for file in self.files[unit * size : (unit + 1) * size]]
            stamps = [_stamp(file) for file in files]
            if (finished := self.journal.read(unit)) is not None and finished["stamps"] == stamps:
                return
            prefixes = [self.prefix] * len(files) if self.prefix else None
            described = captioner.describe_each(files, prefixes=prefixes, **self.options)
            folder = os.path.join(self.working_folder, "")  # messages have the paths that the user gave
            results = [
                str(outcome).replace(folder, "") if isinstance(outcome, MediaError) else outcome
                for _, outcome in described
            ]
            self.journal.write(unit, {"results": results, "stamps": stamps})

        return compute


def describe_distributed(
    runs: Sequence[Path],
    files: Sequence[Path],
    address: str,
    *,
    prefix: str | None = None,
    options: Mapping[str, Any],
    loading: Mapping[str, Any],
) -> Iterator[tuple[Path, list[Sentence] | MediaError]]:
    """Generate captions on a Ray cluster, in the order of the files.

    Finished units stay in a journal beside the first file until all are done, so that an interrupted command computes
    only the other units, and units with a changed file. All machines see the run directories and the files under
    the same paths; `options` are options for `Captioner.describe_each`, and `loading` options for `Captioner.load` or
    `load_hub`.
    """
    names, folders = tuple(map(str, files)), tuple(run.absolute() for run in runs)
    plan = _plan(folders, [names, str(Path.cwd()), dict(options), prefix, dict(loading)])
    size, place = options["batch_size"], files[0].absolute().parent / ".captions.units"
    with locked_journal(place), connected(address) as cluster:
        journal = Journal.begin(place, plan)
        job = CaptionJob(folders, loading, names, Path.cwd(), dict(options), prefix, journal)
        for unit in run_units(cluster, job, -(-len(files) // size)):
            batch = files[unit * size : (unit + 1) * size]
            for file, result in zip(batch, journal.require(unit)["results"], strict=True):
                yield file, MediaError(result) if isinstance(result, str) else SENTENCES.validate_python(result)
        journal.remove()


class GenerationJob(NamedTuple):
    """Inputs of an actor that decodes units."""

    runs: tuple[Path, ...]  # absolute
    collection: Path  # with the features of the items, absolute
    inputs: tuple[GenerationInput, ...]
    batches: tuple[tuple[int, ...], ...]  # rows of the inputs of each unit
    settings: DecodingSettings
    batch_size: int
    journal: Journal
    device: str

    def open(self) -> Callable[[int], None]:
        """Load the models and open the features."""
        models = [load_trained_model(run, self.device) for run in self.runs]
        features = open_features(models[0], Collection.open(self.collection))

        def compute(unit: int) -> None:
            if self.journal.read(unit) is None:
                inputs = [self.inputs[row] for row in self.batches[unit]]
                hypotheses = generate(models, inputs, features, self.settings, batch_size=self.batch_size)
                self.journal.write(unit, {"hypotheses": hypotheses})

        return compute


@contextmanager
def generator_on(
    address: str, runs: Sequence[Path], collection: Path, journal: Path, device: str
) -> Iterator[Generate]:
    """Yield the function that decodes on the Ray cluster at an address; `journal` holds results of finished units."""
    require_folder(collection)
    folders, place, folder = tuple(run.absolute() for run in runs), collection.absolute(), journal.absolute()
    with connected(address) as cluster:

        def on_cluster(
            models: Sequence[TrainedModel],
            inputs: Sequence[GenerationInput],
            features: FeatureSource | None,
            settings: DecodingSettings,
            *,
            batch_size: int = GENERATION_BATCH_SIZE,
            on_progress: Progress | None = None,
        ) -> list[list[Sentence]]:
            """Decode inputs; see `generate`, which has the same arguments, batches and results."""
            batches = tuple(map(tuple, batches_of(models[0], inputs, batch_size)))
            bare = tuple(entry._replace(item=replace(entry.item, sentences=()), references=()) for entry in inputs)
            plan = _plan(folders, [bare, settings.model_dump(mode="json"), batch_size, device])
            hypotheses: list[list[Sentence]] = [[] for _ in inputs]
            done = 0
            with locked_journal(folder):
                units = Journal.begin(folder, plan)
                job = GenerationJob(folders, place, bare, batches, settings, batch_size, units, device)
                for unit in run_units(cluster, job, len(batches)):
                    for row, n_best in zip(batches[unit], units.require(unit)["hypotheses"], strict=True):
                        hypotheses[row] = SENTENCES.validate_python(n_best)
                    done += len(batches[unit])
                    if on_progress is not None:
                        on_progress(done, len(inputs))
                units.remove()
            return hypotheses

        yield on_cluster


def _plan(runs: Sequence[Path], inputs: list[Any]) -> dict[str, Any]:
    """Everything that determines the results of the units: the weights, and a digest of the inputs and options."""
    weights = [hash_files(sorted(run.glob("*.safetensors"))) for run in runs]
    return {"models": weights, "inputs": hashlib.sha256(to_json(inputs).encode()).hexdigest()}


def _stamp(file: Path) -> list[int] | None:
    try:
        facts = file.stat()
    except OSError:
        return None
    return [facts.st_size, facts.st_mtime_ns]

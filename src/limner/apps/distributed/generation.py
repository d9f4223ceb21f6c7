"""Decoding on a Ray cluster: each unit is some batches of inputs, which an actor decodes as one process would."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from limner.apps.distributed.cluster import Cluster, connected, require_folder, run_units
from limner.apps.distributed.journal import Journal, locked_journal
from limner.data.collection import Collection
from limner.data.dataset import FeatureSource, GenerationInput
from limner.decoding.sentence import Sentence
from limner.decoding.settings import DecodingSettings
from limner.inference.collection_features import open_features
from limner.inference.generate import GENERATION_BATCH_SIZE, Generate, batches_of, generate
from limner.progress import Progress
from limner.runs.trained_model import TrainedModel, load_trained_model, sha256
from limner.storage.json_text import to_json


class GenerationJob(NamedTuple):
    """What an actor needs to decode a unit."""

    runs: tuple[Path, ...]
    """Run directories of the models, absolute."""
    collection: Path
    """Collection with the features of the items, absolute."""
    inputs: tuple[GenerationInput, ...]
    batches: tuple[tuple[int, ...], ...]
    """Rows of the inputs of each unit, a batch."""
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
                found = generate(models, inputs, features, self.settings, batch_size=self.batch_size)
                self.journal.write(unit, {"hypotheses": [[one._asdict() for one in n_best] for n_best in found]})

        return compute


class ClusterGenerator:
    """`limner.inference.generate.generate` on a Ray cluster, for the stored features of a collection."""

    def __init__(self, cluster: Cluster, runs: Sequence[Path], collection: Path, journal: Path, device: str) -> None:
        """Initialise the generator.

        Args:
            cluster: cluster that the inputs are decoded on.
            runs: run directories of the models, which all machines see under the same paths.
            collection: collection of the inputs, which they see as well.
            journal: folder for the results of finished units, removed at the end.
            device: device of each actor.
        """
        self._cluster, self._device = cluster, device
        self._runs = tuple(run.absolute() for run in runs)
        self._collection, self._journal = collection.absolute(), journal.absolute()

    def __call__(
        self,
        models: Sequence[TrainedModel],
        inputs: Sequence[GenerationInput],
        features: FeatureSource | None,
        settings: DecodingSettings,
        *,
        batch_size: int = GENERATION_BATCH_SIZE,
        on_progress: Progress | None = None,
    ) -> list[list[Sentence]]:
        """Decode inputs; arguments and results are those of `generate`, with the same batches."""
        batches = tuple(map(tuple, batches_of(models[0], inputs, batch_size)))
        bare = tuple(one._replace(item=replace(one.item, sentences=()), references=()) for one in inputs)
        hypotheses: list[list[Sentence]] = [[] for _ in inputs]
        done = 0
        with locked_journal(self._journal):
            journal = Journal.begin(self._journal, self._plan(bare, settings, batch_size))
            job = GenerationJob(
                self._runs, self._collection, bare, batches, settings, batch_size, journal, self._device
            )
            for unit in run_units(self._cluster, job, len(batches)):
                found = journal.require(unit)["hypotheses"]
                for row, n_best in zip(batches[unit], found, strict=True):
                    hypotheses[row] = [_hypothesis(one) for one in n_best]
                done += len(found)
                if on_progress is not None:
                    on_progress(done, len(inputs))
            journal.remove()
        return hypotheses

    def _plan(self, inputs: Sequence[GenerationInput], settings: DecodingSettings, batch_size: int) -> dict[str, Any]:
        """Everything that determines the results of the units."""
        digest = hashlib.sha256(to_json([inputs, settings.model_dump(mode="json")]).encode()).hexdigest()
        weights = [sha256(run / "model.safetensors") for run in self._runs]
        return {"models": weights, "inputs": digest, "batch_size": batch_size, "device": self._device}


def _hypothesis(fields: dict[str, Any]) -> Sentence:
    """Return a hypothesis of the journal, as it was decoded."""
    return Sentence(
        tuple(fields["tokens"]),
        float(fields["log_prob"]),
        float(fields["score"]),
        fields["ended"],
        tuple(map(float, fields["totals"])),
        fields["text"],
        tuple(fields["copied"]),
        tuple((name, float(value)) for name, value in fields["features"]),
    )


@contextmanager
def generator_on(
    address: str | None, runs: Sequence[Path], collection: Path, journal: Path, device: str
) -> Iterator[Generate]:
    """Yield the function that decodes inputs: `generate` in this process, or on the Ray cluster at an address.

    Args:
        address: see `limner.apps.distributed.cluster.connected`; None for this process.
        runs: see `ClusterGenerator`.
        collection: see `ClusterGenerator`.
        journal: see `ClusterGenerator`.
        device: see `ClusterGenerator`.

    Raises:
        SettingsError: the collection of a cluster is in an object store.
    """
    if address is None:
        yield generate
        return
    require_folder(collection)
    with connected(address) as cluster:
        yield ClusterGenerator(cluster, runs, collection, journal, device)

"""Fixtures of the service: small trained models, and a live server that they are served by."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import uvicorn

import limner
from limner.apps.photos.index import FolderIndex
from limner.apps.server.app import create_app
from limner.apps.server.run import address_of, bind
from limner.apps.server.settings import ServerSettings


class Runs(NamedTuple):
    """Small trained models."""

    captioner: Path
    translator: Path
    images: list[Path]

    @property
    def image(self) -> Path:
        """One of the images."""
        return self.images[0]

    @property
    def base64(self) -> str:
        """The same image in base64."""
        return base64.b64encode(self.image.read_bytes()).decode()


@pytest.fixture(scope="session")
def runs(tmp_path_factory) -> Runs:
    """A captioner 'scenes-en' and a translator 'scenes-de' of generated scenes."""
    place = tmp_path_factory.mktemp("service")
    settings = limner.SceneSettings(seed=1, train=64, val=4, test=4, size=32, max_objects=1)
    scenes = limner.generate_collection(place / "scenes", settings)
    limner.extract(scenes, limner.load_backbone("pixels:16"))
    steps = ["training.epochs=4", "training.validate_every=4", "training.schedule.warmup_steps=5"]
    changes = [*steps, "features.tables=[pixels16]", "training.optimizer.lr=0.005"]
    limner.train(limner.load_recipe("scenes/demo-caption", changes), scenes, place / "scenes-en")
    sizes = [f"model.{name}=32" for name in ("embedding_dim", "hidden_dim", "attention_dim", "readout_dim")]
    changes = [*steps, *sizes, "training.optimizer.lr=0.02", "training.batch_size=16", "training.metric=perplexity"]
    limner.train(limner.load_recipe("scenes/translate", changes), scenes, place / "scenes-de")
    return Runs(place / "scenes-en", place / "scenes-de", [scenes.image_path(item) for item in scenes.items("test")])


@pytest.fixture(scope="session")
def run_service() -> Callable[[ServerSettings], Iterator[str]]:
    """Function that serves in a thread until its generator is closed; it yields the address."""
    return _run_service


def _run_service(settings: ServerSettings) -> Iterator[str]:
    bound = bind(settings)
    server = uvicorn.Server(
        uvicorn.Config(create_app(settings, FolderIndex.open), log_config=None, access_log=False, lifespan="on")
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    yield address_of(bound)
    server.should_exit = True
    thread.join(30)
    bound.close()


@pytest.fixture(scope="session")
def service(runs) -> Iterator[str]:
    """Address of a live service with both models."""
    yield from _run_service(ServerSettings(models=(str(runs.captioner), str(runs.translator)), port=0))

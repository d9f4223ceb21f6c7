"""A service without a network, whose client is an `httpx.AsyncClient`, its engine, and what tests send to them."""

import asyncio
from io import BytesIO

import httpx
from PIL import Image

from limner.apps.photos.index import FolderIndex
from limner.apps.server.app import create_app
from limner.apps.server.indexes import open_indexes
from limner.apps.server.jobs import GenerationRequest
from limner.apps.server.models import Models, ServedModel
from limner.apps.server.service import ServiceEngine
from limner.apps.server.settings import ServerSettings
from limner.inference.captioner import Captioner

MAX_SECONDS = 60


def png(colour=(250, 20, 20), size=(16, 16)):
    stream = BytesIO()
    Image.new("RGB", size, colour).save(stream, "PNG")
    return stream.getvalue()


def captioners(run):
    """Serve a run as the model 'tiny'."""
    return Models([ServedModel("tiny", "describe", {"en": Captioner.load(run)}, created=1)])


def with_service(models, use, **settings):
    """Return what a coroutine function of a client returns; `client.app` is the application."""

    async def with_client():
        app = create_app(ServerSettings.parse({"access_log": False, **settings}), FolderIndex.open, models)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost", timeout=20) as client,
        ):
            client.app = app
            return await asyncio.wait_for(use(client), MAX_SECONDS)

    return asyncio.run(with_client())


def scope_of(path, **headers):
    """A request of ASGI."""
    pairs = [(b"host", b"localhost"), *((name.replace("_", "-").encode(), value) for name, value in headers.items())]
    return {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": pairs, "client": ("test", 1), "http_version": "1.1", "scheme": "http",
        "server": ("localhost", 80), "root_path": "",
    }  # fmt: skip


def run_with_engine(models, use, **settings):
    """Run a coroutine function of an engine with some settings, and stop the engine."""

    async def with_engine():
        parsed = ServerSettings.parse(settings)
        engine = ServiceEngine(models, parsed, open_indexes(parsed, models, FolderIndex.open))
        engine.start()
        try:
            return await asyncio.wait_for(use(engine), MAX_SECONDS)
        finally:
            await asyncio.wait_for(engine.stop(), MAX_SECONDS)

    return asyncio.run(with_engine())


async def describe(engine, image, model=None, lang=None, **options):
    """Return the stream of a caption; `options` are fields of `GenerationRequest`."""
    served = engine.models.get(model, "describe", lang)
    return await engine.generate(GenerationRequest(served, served.generator(lang), image, **options))


async def caption(engine, image, **options):
    """Return the last event of a caption."""
    return await (await describe(engine, image, **options)).final()

"""An engine of the service that runs while a coroutine uses it."""

import asyncio

from limner.apps.photos.index import FolderIndex
from limner.apps.server.engine import ServiceEngine
from limner.apps.server.indexes import open_indexes
from limner.apps.server.jobs import GenerationRequest
from limner.apps.server.settings import ServerSettings

MAX_SECONDS = 60


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

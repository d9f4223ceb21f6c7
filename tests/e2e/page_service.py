"""The page with a service of fixed answers, in the types of the own API, for tests in a browser."""

import asyncio
import json
import math
import threading
from contextlib import contextmanager
from io import BytesIO

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from PIL import Image
from sse_starlette import EventSourceResponse

from limner.apps.server.app import mount_page
from limner.apps.server.protection import HEADERS
from limner.apps.server.schemas import (
    DescribeBody,
    DescribeResponse,
    ModelList,
    SearchBody,
    SearchResponse,
    TranslationRequest,
    TranslationResponse,
)

GRID = (10, 10)
SENTENCES = (
    "a brown dog runs through the shallow water",
    "a dog runs through the water",
    "a brown dog is playing in the water",
)
CENTRES = ((5, 5), (3, 6), (3, 7), (4, 7), (5, 5), (6, 5), (7, 2), (8, 2))


def attention_at(row, column):
    weights = [
        math.exp(-((r - row) ** 2 + (c - column) ** 2) / 3) + 0.002 for r in range(GRID[0]) for c in range(GRID[1])
    ]
    return [weight / sum(weights) for weight in weights]


def tokens_of(text):
    words = text.split()
    return [
        {
            "text": word if number == 0 else f" {word}",
            "token_id": number + 4,
            "log_prob": math.log(0.95 - 0.11 * (number % 6)),
            "attention": attention_at(*CENTRES[number % len(CENTRES)]),
        }
        for number, word in enumerate(words)
    ]


def caption(text, rank=0, confidence=0.82, display_text=None):
    tokens = tokens_of(text)
    log_prob = sum(token["log_prob"] for token in tokens) - rank
    return {
        "text": text,
        "display_text": display_text or text,
        "log_prob": log_prob,
        "score": log_prob,
        "ended": True,
        "confidence": confidence,
        "tokens": tokens,
    }


def translation(text, gates=None):
    source = ["a", "bat", "is", "in", "the", "room"]
    words = text.split()
    alignment = [[0.62 if s == t else 0.38 / (len(source) - 1) for s in range(len(source))] for t in range(len(words))]
    return {
        "model": "translator",
        "source": "en",
        "lang": "de",
        "translations": [caption(text)],
        "out_of_domain": gates is None,
        "explanation": {
            "source": source,
            "target": [{"text": word, "log_prob": -0.3} for word in words],
            "alignment": alignment,
            "attention": None if gates is None else [attention_at(*CENTRES[t]) for t in range(len(words))],
            "gate": gates,
            "grid_size": GRID,
            "box": (0, 0, 1, 1),
        },
    }


class FakeService:
    """Answers that a test may change, and the requests that it received."""

    def __init__(self):
        search = {"uses_image": True, "explains": True, "beam_size": 5, "length_penalty": 0.7}
        self.models = [
            {"id": "built-in", "task": "describe", "languages": ["en", "de", "zh"], "source": None, **search},
            {"id": "demo", "task": "translate", "languages": ["de"], "source": "en", **search},
        ]
        self.indexes = [{"name": "photographs", "images": 7}]
        self.requests = []
        self.failures = []
        """Pairs of a status and headers that the next requests are answered with."""
        self.decisions = None
        """Semaphore that each token, and the end, waits for; or None."""
        self.abstained = None
        """What is answered in place of a caption of which the model is not sure; None if it is sure."""
        self.key = None
        """API key that requests must have, or None."""
        self.breaks = False
        """Whether the stream of a caption ends with an error."""

    def app(self):
        app = FastAPI()

        @app.get("/v1/models")
        async def models():
            data = [{"created": 0, **model} for model in self.models]
            return self._failure() or ModelList.model_validate({"data": data, "indexes": self.indexes})

        @app.post("/v1/describe")
        async def describe(body: DescribeBody):
            kept = self._keep(body)
            return self._failure() or EventSourceResponse(self._events(kept))

        @app.post("/v1/translate", response_model=TranslationResponse)
        async def translate(body: TranslationRequest):
            with_image = "image" in self._keep(body)
            return self._failure() or translation(
                *(
                    ("ein Schläger ist im Zimmer", [0.1, 0.92, 0.2, 0.3, 0.7])
                    if with_image
                    else ("eine Fledermaus ist im Zimmer",)
                )
            )

        @app.post("/v1/search", response_model=SearchResponse)
        async def search(body: SearchBody):
            self._keep(body)
            return self._failure() or {
                "index": "photographs",
                "hits": [
                    {
                        "name": f"photo-{n}.jpg",
                        "caption": SENTENCES[n % 3],
                        "score": -n / 3,
                        "confidence": 0.8,
                        "tags": ["dog"],
                        "abstained": n == 6,
                        "thumbnail": f"thumbnail/{n}",
                    }
                    for n in range(7)
                ],
            }

        @app.get("/thumbnail/{number}")
        async def thumbnail(number: int):
            png = BytesIO()
            Image.new("RGB", (160, 120), (30 * number, 120, 200 - 20 * number)).save(png, "PNG")
            return Response(png.getvalue(), media_type="image/png")

        @app.middleware("http")
        async def strict(request: Request, call_next):
            needs_key = self.key is not None and request.url.path.startswith("/v1")
            if needs_key and request.headers.get("Authorization") != f"Bearer {self.key}":
                return JSONResponse({"error": {"message": "expected an API key", "type": "authentication_error"}}, 401)
            response = await call_next(request)
            response.headers.update(HEADERS)
            return response

        mount_page(app)
        return app

    def _keep(self, body):
        self.requests.append(body.model_dump(exclude_unset=True))
        return self.requests[-1]

    def _failure(self):
        if not self.failures:
            return None
        status, headers = self.failures.pop(0)
        return JSONResponse({"error": {"message": f"answer with status {status}", "type": "test"}}, status, headers)

    async def _decided(self):
        while self.decisions is not None and not self.decisions.acquire(blocking=False):
            await asyncio.sleep(0.01)

    async def _events(self, body):
        best = caption(SENTENCES[0])
        for index, token in enumerate(best["tokens"]):
            await self._decided()
            decided = {key: token[key] for key in ("text", "token_id", "log_prob", "attention")}
            yield {"event": "token", "data": json.dumps({"index": index, **decided})}
            if self.breaks:
                error = {
                    "message": "not answered within 60 seconds; request less, or repeat it later",
                    "type": "timeout_error",
                }
                yield {"event": "error", "data": json.dumps({"error": error})}
                return
        await self._decided()
        done = {
            "model": "built-in",
            "lang": body.get("lang", "en"),
            "captions": [
                caption(text, rank, display_text=self.abstained)
                for rank, text in enumerate(SENTENCES[: body["n_best"]])
            ],
            "tags": [{"name": "golden retriever", "probability": 0.61}, {"name": "seashore", "probability": 0.22}],
            "grid_size": GRID,
            "abstained": self.abstained is not None,
        }
        yield {"event": "done", "data": DescribeResponse.model_validate(done).model_dump_json()}


@contextmanager
def running(app):
    """Serve an application in a thread; yields its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            thread.join(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()

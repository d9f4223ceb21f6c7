"""Requests made from the OpenAPI description: no 5xx, and every response as described."""

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from limner.apps.photos.index import FolderIndex
from limner.apps.server.app import create_app
from limner.apps.server.settings import ServerSettings

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]
EXAMPLES, MANY_EXAMPLES = 8, 200
PATHS = create_app(ServerSettings(), FolderIndex.open).openapi()["paths"]
OPERATIONS = [(path, method) for path, methods in PATHS.items() for method in methods]
WITH_BODY = [(path, method) for path, method in OPERATIONS if "requestBody" in PATHS[path][method]]

CAPTION = {"model": "scenes-en"}
TRANSLATION = {"q": "There is a black cup in the snow.", "source": "en", "target": "de", "format": "text"}
PAIR = {"source": "en", "target": "de"}
REFUSED = {"format", "response_format", "text"}
REFUSED |= {"lang", "must_include", "explain", "sample", "min_confidence"}
"""Fields that refuse a request, or make a request that another field refuses."""
ANSWERED = {
    "/v1/describe": lambda image: {"image": image, "model": "scenes-en", "sample": True},
    "/v1/translate": lambda image: {"text": TRANSLATION["q"], "model": "scenes-de", "sample": True} | PAIR,
    "/v1/score": lambda image: CAPTION | {"image": image, "sentences": ["a black cup"], "lang": None},
    "/v1/chat/completions": lambda image: CAPTION | {"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{image}"}}]}]},
    "/api/generate": lambda image: CAPTION | {"images": [image], "prompt": "Describe this image.", "format": None},
    "/api/chat": lambda image: CAPTION | {"format": None, "messages": [
        {"role": "user", "content": "Describe this image.", "images": [image]}]},
    "/v1/responses": lambda image: CAPTION | {"input": [{"role": "user", "content": [
        {"type": "input_image", "image_url": f"data:image/jpeg;base64,{image}"}]}]},
    "/api/show": lambda image: CAPTION,
    "/translate": lambda image: TRANSLATION | {"image": image},
    "/detect": lambda image: {"q": TRANSLATION["q"]},
}  # fmt: skip
"""Fields that make a request one that can be answered; the others are made up."""


@pytest.fixture(scope="module")
def description(service):
    return schemathesis.openapi.from_url(f"{service}/openapi.json")


def statuses(operation, examples, mode=GenerationMode.POSITIVE, given_fields=None):
    """Send made-up requests, check the responses and return their statuses."""
    found = set()

    @settings(max_examples=examples, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case):
        if given_fields is not None and isinstance(case.body, dict):
            kept = {name: value for name, value in case.body.items() if name not in REFUSED}
            case.body = kept | given_fields
        response = case.call(timeout=60)
        case.validate_response(response, checks=CHECKS)
        found.add(response.status_code)

    send()
    return found


def check_all(description, runs, path, method, examples):
    operation = description[path][method]
    assert statuses(operation, examples)
    if (path, method) in WITH_BODY:
        assert statuses(operation, examples, GenerationMode.NEGATIVE)
        if path in ANSWERED:
            assert 200 in statuses(operation, examples, given_fields=ANSWERED[path](runs.base64))


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_answers_are_as_described(description, runs, path, method):
    check_all(description, runs, path, method, EXAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_many_answers_are_as_described(description, runs, path, method):
    check_all(description, runs, path, method, MANY_EXAMPLES)

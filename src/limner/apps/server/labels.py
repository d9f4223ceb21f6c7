"""Labels: the concepts of an image as an object of the JSON schema that photo managers request.

An object is built from the schema and is therefore valid; other schemas are refused before anything is computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from limner.apps.server.errors import NotSupportedError

FIELDS = {"name": "string", "confidence": "number", "topicality": "number"}
"""Fields of a label with their types; the topicality is the confidence of the concept."""
LABELS = {"properties": {"labels": {"type": "array", "items": {"properties": {field: {} for field in FIELDS}}}}}
"""Default schema of requests for JSON without a schema, with the fields of PhotoPrism."""
LOW, HIGH = {"minItems": 0, "minLength": 1, "minimum": 0}, {"maximum": 1}
"""Bounds of the constraints in a schema: lists, names and confidences are always within."""
KEYWORDS = {"type", "properties", "required", "additionalProperties", "items", "maxItems", "uniqueItems", "title"}
KEYWORDS |= {"description", "default", "examples", "$schema", "$id", "$defs", *LOW, *HIGH}
"""Keywords of JSON Schema that are understood; any other keyword may forbid the object."""


def schema_of(requested: str | dict[str, Any] | None, param: str) -> dict[str, Any] | None:
    """Return the schema of a response that `json`, a schema (Ollama) or a format of OpenAI requests; None for text.

    NotSupportedError, which names the field `param`, for another format, or a schema that labels do not fit.
    """
    kind = requested.get("type") if isinstance(requested, dict) else requested
    if not requested or kind == "text":
        return None
    if kind in ("json", "json_object"):
        return LABELS
    if not isinstance(requested, dict):
        raise NotSupportedError(f"{param}: expected json or a JSON schema, got '{requested[:40]}'", param)
    try:
        schema = requested if kind != "json_schema" else (requested.get("json_schema") or requested)["schema"]
        labels_of((), schema, param)
    except (AttributeError, KeyError, TypeError):
        raise NotSupportedError(f"{param}: expected a JSON schema; correct it, or leave it out", param) from None
    return dict(schema)


def labels_of(tags: Sequence[tuple[str, float]], schema: Any, param: str) -> dict[str, Any]:  # noqa: ANN401
    """Return an object of a schema (any JSON value) with tags and their probabilities: a list of labels.

    NotSupportedError if the schema requires something else, or has keywords that are not understood.
    """

    def refused(place: str, reason: str) -> NotSupportedError:
        fits = "the models of this service write text, or one list of labels (name, confidence, topicality)"
        return NotSupportedError(f"{param}: {place[:40]}: {reason}; {fits}", param)

    def part(value: Any, place: str, kinds: Sequence[str], known: Iterable[str] = ()) -> dict[str, Any]:  # noqa: ANN401
        if "$ref" in value:
            value = schema.get("$defs", {}).get(str(value["$ref"]).removeprefix("#/$defs/"), value)
        wrong = [keyword for keyword in value if keyword not in KEYWORDS]
        wrong += [keyword for keyword, least in LOW.items() if value.get(keyword, least) > least]
        wrong += [keyword for keyword, most in HIGH.items() if value.get(keyword, most) < most]
        wrong += [field for field in value.get("required", ()) if field not in known]
        if wrong or value.get("type", kinds[0]) not in kinds:
            raise refused(place, f"'{wrong[0]:.40}' is not possible" if wrong else f"expected {' or '.join(kinds)}")
        return dict(value)

    properties = schema.get("properties", {}) if isinstance(schema, dict) else {}
    lists = [name for name, value in properties.items() if isinstance(value, dict) and value.get("type") == "array"]
    part(schema, "schema", ["object"], lists)
    if len(lists) != 1:
        raise refused("schema", f"expected one list, got {len(lists)}")
    array = part(properties[lists[0]], lists[0], ["array"])
    item = part(array.get("items"), f"{lists[0]}.items", ["object", "string"], FIELDS)
    most = array.get("maxItems", len(tags))
    if isinstance(most, bool) or not isinstance(most, int | float) or most < 0 or most % 1:
        raise refused(lists[0], "expected a whole number of 'maxItems'")
    tags = tags[: int(most)]
    if item.get("type") == "string":
        return {lists[0]: [word for word, _ in tags]}
    properties = {field: {} for field in item.get("required", ())} | item.get("properties", {})
    fields = [field for field in FIELDS if field in properties]
    if "name" not in fields:
        raise refused(f"{lists[0]}.items", "expected a 'name'")
    for field in fields:
        part(properties[field], f"{lists[0]}.items.{field}", [FIELDS[field]])
    return {lists[0]: [{field: word if field == "name" else p for field in fields} for word, p in tags]}

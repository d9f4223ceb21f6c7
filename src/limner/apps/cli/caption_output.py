"""Output of captions in several formats, one input at a time, to standard output or a file."""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from limner.apps.cli.terminal import printable, tab_separated
from limner.errors import LimnerError, SettingsError, did_you_mean
from limner.storage.json_text import to_json
from limner.storage.outputs import OutputStream, begins_with, claim_file

if TYPE_CHECKING:
    from limner.decoding.sentence import Sentence

CaptionFormat = Literal["text", "tsv", "csv", "jsonl", "json"]
"""Format of captions: `text` has the file and the caption, `tsv` and `csv` a header, `jsonl` one object per input, and
`json` one list, which is complete at the end only."""
SUFFIXES: dict[str, CaptionFormat] = {
    ".txt": "text",
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".json": "json",
}
COLUMNS = ("image", "rank", "caption", "log_prob")
"""Header of tables of captions."""
_RECORD = rb'\{\s*"image": "(?:[^"\\]|\\.)*",\s*"(?:captions|error)": '
_BEGINNINGS = {
    "jsonl": re.compile(_RECORD),
    "json": re.compile(rb"\[\s*" + _RECORD),
    "csv": re.compile(",".join(COLUMNS).encode() + rb"(,confidence)?(,tags)?(,origin)?\n"),
    "tsv": re.compile("\t".join(COLUMNS).encode() + rb"(\tconfidence)?(\ttags)?(\torigin)?\n"),
}
"""How files of captions of each format begin; text begins with any word."""


class KeptCaption(NamedTuple):
    """The caption that an image file has already, which is kept."""

    text: str


WriteCaptions = Callable[[Path, "list[Sentence] | KeptCaption | LimnerError"], None]
"""Called with each input and its captions, or with the error that it cannot be read."""


def choose_format(
    chosen: CaptionFormat | None, as_json: bool, output: Path | None, force: bool = False
) -> CaptionFormat:
    """Return the format of the captions: as chosen, else by the suffix of the file, else text.

    Raises:
        SettingsError: --json and --format disagree, the suffix has no format, or the file must not be written.
    """
    if as_json and chosen not in (None, "json"):
        raise SettingsError(f"--json and --format {chosen}: give one or the other")
    kind: CaptionFormat = "json" if as_json else chosen or "text"
    if output is not None and chosen is None and not as_json:
        if output.suffix.lower() not in SUFFIXES:
            known = ", ".join(get_args(CaptionFormat))
            raise SettingsError(
                f"--output {output}: expected a file that ends in {', '.join(SUFFIXES)}; rename it, or choose one of "
                f"--format {known}{did_you_mean(output.suffix, SUFFIXES)}"
            )
        kind = SUFFIXES[output.suffix.lower()]
    if output is not None:
        beginning = _BEGINNINGS.get(kind)
        claim_file(
            output, "--output", force=force, is_own=lambda file: beginning is not None and begins_with(file, beginning)
        )
    return kind


@contextmanager
def caption_output(output: Path | None, kind: CaptionFormat, columns: Sequence[str] = ()) -> Iterator[WriteCaptions]:
    """Yield a function that writes the captions of one input at once, so that they can be read while others follow.

    Args:
        output: file to write; None for standard output.
        kind: format.
        columns: what is written besides captions: 'confidence', which text leaves out, 'tags', and in tables 'origin',
            'model' for generated captions and 'file' for those that are kept.

    Raises:
        WriteError: the file cannot be written; the captions are printed.
    """
    if output is None:
        yield from _write(_to_standard_output, kind, columns)
        return
    with OutputStream(output) as stream:
        yield from _write(stream.write, kind, columns)


def _to_standard_output(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _write(emit: Callable[[str], None], kind: CaptionFormat, columns: Sequence[str]) -> Iterator[WriteCaptions]:
    """Yield the function that writes the captions of an input."""
    records: list[dict[str, Any]] = []

    def write(file: Path, result: list[Sentence] | KeptCaption | LimnerError) -> None:
        if isinstance(result, list):
            result = [caption for caption in result if caption.is_sure] or result[:1]
        if kind == "json":
            records.extend([] if isinstance(result, LimnerError) else [_record(file, result, columns)])
        elif kind == "jsonl":
            emit(to_json(_record(file, result, columns)) + "\n")
        elif not isinstance(result, LimnerError):
            emit("".join(_lines(file, result, kind, columns)))

    if kind in ("tsv", "csv"):
        emit(_row((*COLUMNS, *columns), kind))
    yield write
    if kind == "json":
        emit(to_json(records, indent=1) + "\n")


def _record(file: Path, result: list[Sentence] | KeptCaption | LimnerError, columns: Sequence[str]) -> dict[str, Any]:
    if isinstance(result, LimnerError):
        return {"image": str(file), "error": str(result)}
    if isinstance(result, KeptCaption):
        kept = {"text": result.text, "log_prob": None, "score": None}
        return {"image": str(file), "captions": [kept], "origin": _origin(result)}
    record: dict[str, Any] = {"image": str(file), "captions": [_caption(one, columns) for one in result]}
    if "origin" in columns:
        record["origin"] = _origin(result)
    if "tags" in columns:
        record["tags"] = [
            {"word": tag.word, "probability": tag.probability, "kind": tag.kind} for tag in result[0].tags
        ]
    return record


def _caption(caption: Sentence, columns: Sequence[str]) -> dict[str, Any]:
    """Return a caption as plain values; the text is null where it is withheld."""
    values: dict[str, Any] = {
        "text": caption.display_text or None,
        "log_prob": caption.log_prob,
        "score": caption.score,
    }
    if "confidence" in columns:
        values["confidence"] = caption.confidence
    return values


def _origin(result: list[Sentence] | KeptCaption) -> str:
    """Say where captions are from, in tables that list those of a model and those that are kept."""
    return "file" if isinstance(result, KeptCaption) else "model"


def _lines(
    file: Path, result: list[Sentence] | KeptCaption, kind: CaptionFormat, columns: Sequence[str]
) -> Iterator[str]:
    """Yield the lines of an input; the log-probability is part of the text where there are several captions.

    In place of a caption that is withheld, text says so, and tables have an empty one.
    """
    from limner.decoding.sentence import NOT_SURE, format_tags

    if isinstance(result, KeptCaption):
        yield _row((str(file), 1, result.text, "", *(_origin(result) if c == "origin" else "" for c in columns)), kind)
        return
    for rank, one in enumerate(result, 1):
        if kind == "text":
            log_prob = (f"{one.log_prob:.2f}",) if len(result) > 1 else ()
            tags = (format_tags(one.tags),) if "tags" in columns else ()
            yield tab_separated(file, one.display_text if one.is_sure else NOT_SURE, *log_prob, *tags) + "\n"
        else:
            values = {
                "confidence": "" if one.confidence is None else f"{one.confidence:.4f}",
                "tags": ";".join(tag.word for tag in one.tags),
                "origin": _origin(result),
            }
            yield _row(
                (str(file), rank, one.display_text, f"{one.log_prob:.4f}", *(values[name] for name in columns)), kind
            )


def _row(values: Sequence[object], kind: CaptionFormat) -> str:
    """Write one row of a table; RFC 4180 with line feeds for csv, no quotes for tsv."""
    if kind == "tsv":
        return tab_separated(*values) + "\n"
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(map(printable, values))
    return line.getvalue()

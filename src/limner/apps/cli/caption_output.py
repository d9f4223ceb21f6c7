"""Output of captions to standard output or a file, in several formats."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from limner.apps.cli.terminal import print_columns, printable, tab_separated
from limner.errors import LimnerError, SettingsError, did_you_mean
from limner.storage.json_text import to_json
from limner.storage.outputs import OutputStream, claim_file

if TYPE_CHECKING:
    from limner.decoding.sentence import Sentence

CaptionFormat = Literal["text", "tsv", "csv", "jsonl", "json"]
"""Format of captions: `text` has lines of file and caption, `tsv` and `csv` a table, `jsonl` an object per input, and
`json` a list, which is complete only at the end."""
SUFFIXES: dict[str, CaptionFormat] = {".txt": "text", ".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".json": "json"}
COLUMNS = ("image", "rank", "caption", "log_prob")
"""Header of tables of captions."""

Captions: TypeAlias = "list[Sentence] | str | LimnerError"
"""Captions of an input, the text of an existing caption, or the error of an unreadable input."""
WriteCaptions = Callable[[Path, Captions], None]
"""Called with each input and its captions."""


def choose_format(chosen: CaptionFormat | None, as_json: bool, output: Path | None, force: bool) -> CaptionFormat:
    """Return the format of the captions: as chosen, else by the suffix of the file, else text."""
    if as_json and chosen not in (None, "json"):
        raise SettingsError(f"--json and --format {chosen}: give one or the other")
    kind = "json" if as_json else chosen
    if output is None:
        return kind or "text"
    kind = kind or SUFFIXES.get(output.suffix.lower())
    if kind is None:
        raise SettingsError(
            f"--output {output}: expected a file that ends in {', '.join(SUFFIXES)}; rename it, or choose one of "
            f"--format {', '.join(get_args(CaptionFormat))}{did_you_mean(output.suffix, SUFFIXES)}"
        )
    claim_file(output, "--output", force=force)
    return kind


@contextmanager
def caption_output(
    output: Path | None, kind: CaptionFormat, columns: Sequence[str] = (), *, ranked: bool = False, lang: str = "en"
) -> Iterator[WriteCaptions]:
    """Yield a function that writes the captions of an input immediately.

    `columns` are written besides captions: 'confidence', which text leaves out, 'tags', and in tables 'origin': 'model'
    for generated captions and 'file' for existing captions. The captions are printed if the file cannot be written.
    `ranked` says whether text has scores, also of an input with one caption; `lang` is the language of the captions.
    """
    if ranked and kind == "text" and output is None:
        print_columns("image", "caption", "score", *(["tags"] if "tags" in columns else []))
    with nullcontext() if output is None else OutputStream(output) as stream:
        emit: Callable[[str], object] = partial(print, end="", flush=True) if stream is None else stream.write
        yield from write_captions(emit, kind, columns, ranked, lang=lang)


def write_captions(
    emit: Callable[[str], object],
    kind: CaptionFormat,
    columns: Sequence[str],
    ranked: bool = False,
    head: bool = True,
    lang: str = "en",
) -> Iterator[WriteCaptions]:
    records: list[dict[str, Any]] = []

    def write(file: Path, result: Captions) -> None:
        if isinstance(result, list):
            result = [caption for caption in result if caption.is_sure] or result[:1]
        if kind == "json":
            records.extend([] if isinstance(result, LimnerError) else [_record(file, result, columns)])
        elif kind == "jsonl":
            emit(to_json(_record(file, result, columns)) + "\n")
        elif not isinstance(result, LimnerError):
            emit("".join(_lines(file, result, kind, columns, ranked or len(result) > 1, lang)))

    if head and kind in ("tsv", "csv"):
        emit(format_row((*COLUMNS, *columns), kind))
    yield write
    if kind == "json":
        emit(to_json(records, indent=1) + "\n")


def _record(file: Path, result: Captions, columns: Sequence[str]) -> dict[str, Any]:
    if isinstance(result, LimnerError):
        return {"image": str(file), "error": str(result)}
    if isinstance(result, str):
        kept = {"text": result, "log_prob": None, "score": None}
        return {"image": str(file), "captions": [kept], "origin": "file"}
    record: dict[str, Any] = {"image": str(file), "captions": []}
    for hypothesis in result:  # the text is null where the caption is withheld
        values = {"text": hypothesis.display_text or None, "log_prob": hypothesis.log_prob, "score": hypothesis.score}
        record["captions"].append(values | ({"confidence": hypothesis.confidence} if "confidence" in columns else {}))
    record |= {"origin": "model"} if "origin" in columns else {}
    if "tags" in columns:
        record["tags"] = [tag._asdict() for tag in result[0].tags]
    return record


def _lines(
    file: Path, result: list[Sentence] | str, kind: CaptionFormat, columns: Sequence[str], ranked: bool, lang: str
) -> Iterator[str]:
    """Yield the lines of an input; where captions are ranked, text has the score.

    A withheld caption is `NOT_SURE` in text, and empty in tables.
    """
    from limner.decoding.sentence import NOT_SURE, format_tags

    if isinstance(result, str):
        yield format_row((str(file), 1, result, "", *("file" if name == "origin" else "" for name in columns)), kind)
        return
    for rank, hypothesis in enumerate(result, 1):
        text = hypothesis.display_text
        if kind == "text":
            score = (f"{hypothesis.score:.2f}",) if ranked else ()
            tags = (format_tags(hypothesis.tags),) if "tags" in columns else ()
            text = text if hypothesis.is_sure else NOT_SURE.get(lang, NOT_SURE["en"])
            yield tab_separated(file, text, *score, *tags) + "\n"
        else:
            values = {
                "confidence": "" if hypothesis.confidence is None else f"{hypothesis.confidence:.4f}",
                "tags": ";".join(tag.word for tag in hypothesis.tags),
                "origin": "model",
            }
            more = (values[name] for name in columns)
            yield format_row((str(file), rank, text, f"{hypothesis.log_prob:.4f}", *more), kind)


def format_row(values: Sequence[object], kind: CaptionFormat) -> str:
    """Write one row of a table; RFC 4180 with line feeds for csv, no quotes for tsv."""
    if kind == "tsv":
        return tab_separated(*values) + "\n"
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(map(printable, values))
    return line.getvalue()

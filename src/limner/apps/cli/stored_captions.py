"""Captions stored with the images: tables and text files beside them, XMP sidecars, and metadata in the image files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from unicodedata import normalize

from limner.apps.cli.caption_output import COLUMNS, Captions, format_row, write_captions
from limner.apps.cli.terminal import err, printable
from limner.errors import LimnerError, SettingsError
from limner.files import read_bytes, write_error, write_text
from limner.files.structured import parse_json
from limner.storage.json_text import to_json
from limner.storage.outputs import require_writable

if TYPE_CHECKING:
    from limner.decoding.sentence import Sentence

LANGUAGE_SAMPLE = 100
"""Number of kept captions from which their language is guessed."""
WriteKind = Literal["csv", "jsonl", "txt", "xmp"]
TABLES: dict[str | None, Literal["csv", "jsonl"]] = {"csv": "csv", "jsonl": "jsonl"}
"""Kinds of caption files that list all captions of a folder."""


class CaptionTable:
    """The table of the captions in a folder, which grows by the rows of each image as soon as it is described."""

    def __init__(self, path: Path, kind: Literal["csv", "jsonl"], force: bool) -> None:
        """Read an existing table; SettingsError for a file that `describe` did not write, unless `force`."""
        self.path, self._kind = path, kind
        self.columns: list[str] = []
        self.rows: dict[str, list[Any]] = {}
        try:
            text = read_bytes(path).decode() if path.exists() and not force else ""
            for image, row in self._parse(text[: text.rfind("\n") + 1]):  # a killed process may leave a part of a line
                self.rows.setdefault(image, []).append(row)
        except (ValueError, LookupError, TypeError, csv.Error):
            raise SettingsError(
                f"--write {kind}: {path} exists and is no table of captions; rename it, or add --force to replace it"
            ) from None
        require_writable(path.parent, f"--write {kind} {path}")

    def _parse(self, text: str) -> Iterator[tuple[str, Any]]:
        """Yield the image and the row of each caption; images without a caption are left out."""
        if self._kind == "jsonl":
            for record in map(parse_json, text.split("\n")[:-1]):
                if "error" not in record and record["captions"][0]["text"]:
                    yield to_json(record["image"]), record
        elif text:
            head, *rows = csv.reader(io.StringIO(text, newline=""))
            if (*head[: len(COLUMNS)],) != COLUMNS or any(len(row) != len(head) for row in rows):
                raise ValueError
            self.columns = head[len(COLUMNS) :]
            yield from ((row[0], row) for row in rows if row[COLUMNS.index("caption")])

    def name(self, file: Path) -> str:
        """Return the name of an image in the table."""
        name = str(file.relative_to(self.path.parent))
        return printable(name) if self._kind == "csv" else to_json(name)

    def text(self, file: Path) -> str:
        """Return the best caption of an image in the table."""
        row = self.rows[self.name(file)][0]
        return str(row["captions"][0]["text"] if self._kind == "jsonl" else row[COLUMNS.index("caption")])

    def begin(self, columns: Sequence[str]) -> None:
        """Write the table with the kept rows, and with empty cells in its new columns."""
        added = [column for column in columns if column not in self.columns]
        self.columns += added
        rows = [row for rows in self.rows.values() for row in rows]
        if self._kind == "jsonl":
            return write_text(self.path, "".join(to_json(row) + "\n" for row in rows))
        lines = [[*COLUMNS, *self.columns], *([*row, *[""] * len(added)] for row in rows)]
        write_text(self.path, "".join(format_row(line, "csv") for line in lines))

    def append(self, file: Path, result: Captions) -> None:
        """Add the rows of an image, or of its error; after a WriteError the rows before them are complete."""
        try:
            with self.path.open("a", encoding="utf-8", newline="") as stream:
                for write in write_captions(stream.write, self._kind, self.columns, head=False):
                    write(file.relative_to(self.path.parent), result)
        except OSError as error:
            raise write_error(self.path, error) from None


class StoredCaptions:
    """Captions stored with the images: selection of the images without a caption, storing, and a summary."""

    def __init__(self, kind: WriteKind | None, embed: bool, replace: bool, force: bool = False) -> None:
        """Take the options of `limner describe`."""
        self._kind, self._embed, self._replace, self._force = kind, embed, replace, force
        self._tables: dict[Path, CaptionTable] = {}
        self._table_of: dict[Path, CaptionTable] = {}  # of each file that gets rows, in their order
        self._results: dict[Path, Captions] = {}
        self._waiting: list[Path] = []  # files without rows yet, the last one first
        self.errors: list[LimnerError] = []
        self.written = self.kept = self.unsure = 0
        self._kept_texts: list[str] = []

    def select(self, files: Sequence[Path], named: Sequence[Path] = ()) -> list[Path]:
        """Return the files without a stored caption.

        `named` are the files and folders that the user named; a table is in the folder named, else in the folder of its
        files. SettingsError if two files have the same text file, or a table cannot be read or written.
        """
        self._require_files_beside(files)
        for file in files if self._kind in TABLES else ():
            folder = next((path for path in named if path.is_dir() and file.is_relative_to(path)), file.parent)
            path = folder / f"captions.{self._kind}"
            if path not in self._tables:
                self._tables[path] = CaptionTable(path, TABLES[self._kind], self._force)
            self._table_of[file] = self._tables[path]
        return [file for file in files if self._needs_caption(file)]

    def store(self, file: Path, result: list[Sentence] | LimnerError, lang: str) -> None:
        """Store the best caption of an image, in a language, unless the model is not sure of it."""
        self._results[file] = result
        if isinstance(result, LimnerError):
            self.errors.append(result)
        else:
            self.unsure += not result[0].is_sure
            if result[0].is_sure and result[0].text.strip():
                self._store(file, result[0].text, lang)
        self._append_rows()

    def begin_tables(self, columns: Sequence[str] = ()) -> None:
        """Write the tables with the kept rows; for the columns see `caption_output`."""
        for table in self._tables.values():
            table.begin((*columns, *(["origin"] if self._embed else [])))
        self._waiting = [*reversed(self._table_of)]
        self._append_rows()

    def _append_rows(self) -> None:
        """Add rows to the tables, in the order of the files, up to the first file that is not described."""
        while self._waiting and self._waiting[-1] in self._results:
            file = self._waiting.pop()
            self._table_of[file].append(file, self._results.pop(file))

    def report(self, lang: str) -> None:
        """Print the numbers of images with a new caption in a language, a kept caption, and no sure caption."""
        if not self.written + self.kept + self.unsure:
            return
        from limner.text.queries import guess_language, language_name

        kept = f", {self.kept:,} kept (--replace replaces them)" if self.kept else ""
        if (other := guess_language(self._kept_texts, lang)) != lang:
            kept = f", {self.kept:,} kept, in {language_name(other)} (--replace writes {language_name(lang)})"
        unsure = f", {self.unsure:,} not sure and not written" if self.unsure else ""
        err.print(f"captions: {self.written:,} written{kept}{unsure}", soft_wrap=True, highlight=False)

    def _needs_caption(self, file: Path) -> bool:
        table, text, in_image = self._table_of.get(file), "", self._embed or self._kind not in (None, *TABLES)
        try:
            text = self._stored_text(file) if in_image and file.exists() else ""
        except LimnerError as error:
            self.errors.append(error)
            self._results[file] = error
            return False
        is_listed = table is not None and table.name(file) in table.rows
        is_kept = not self._replace and (bool(text) if in_image else is_listed)
        self.kept += is_kept
        if is_kept and len(self._kept_texts) < LANGUAGE_SAMPLE:
            self._kept_texts.append(text if in_image or table is None else table.text(file))
        if is_kept and is_listed:
            del self._table_of[file]
        elif is_kept:
            self._results[file] = text
        elif table is not None:
            table.rows.pop(table.name(file), None)
        return not is_kept

    def _stored_text(self, file: Path) -> str:
        """Return the stored caption of an image, or an empty text; LimnerError if no caption can be stored.

        A caption of a person in the file would be hidden by a new sidecar.
        """
        from limner.apps.photos.captions import caption_in_file, caption_of_sidecar, require_caption_support

        if self._embed:
            require_caption_support(file)
        if self._kind == "txt":
            text_file = _text_file(file)
            return text_file.name if text_file.exists() and text_file.stat().st_size else ""
        return (caption_of_sidecar(file) if self._kind == "xmp" else "") or caption_in_file(file)

    def _store(self, file: Path, text: str, lang: str) -> None:
        from limner.apps.photos.captions import embed_caption, write_sidecar

        is_written = self._kind in TABLES
        try:
            if self._kind == "txt":
                write_text(_text_file(file), f"{text}\n")
                is_written = True
            elif self._kind == "xmp":
                is_written = write_sidecar(file, text, lang, replace=self._replace)
            if self._embed:
                is_written |= embed_caption(file, text, lang, replace=self._replace)
        except LimnerError as error:
            self.errors.append(error)
        else:
            self.written += is_written
            self.kept += not is_written

    def _require_files_beside(self, files: Sequence[Path]) -> None:
        """Refuse two images with the same text file, also on file systems that ignore case."""
        images: dict[tuple[Path, str], Path] = {}
        for file in filter(Path.exists, files if self._kind == "txt" else ()):
            path = _text_file(file)
            other = images.setdefault((path.parent.resolve(), normalize("NFC", path.name).casefold()), file)
            if not other.samefile(file):
                raise SettingsError(
                    f"--write txt: the captions of {other} and {file} would be in one file, {path.name}; rename one of "
                    "the images, or use --write xmp"
                )


def _text_file(image: Path) -> Path:
    from limner.apps.photos.captions import existing_path

    return existing_path(image.with_suffix(".txt"))

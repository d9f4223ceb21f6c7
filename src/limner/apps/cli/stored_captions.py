"""Captions stored with the images: tables and files beside them, XMP sidecars, and metadata in the image files.

`--output` writes one file that the user names; `--write` and `--embed` put the captions where the images are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from unicodedata import normalize

from limner.apps.cli.caption_output import KeptCaption, WriteCaptions, caption_output
from limner.apps.cli.options import refuse
from limner.apps.cli.terminal import err
from limner.errors import LimnerError, SettingsError
from limner.files import write_text
from limner.storage.outputs import require_writable

if TYPE_CHECKING:
    from limner.decoding.sentence import Sentence

WriteKind = Literal["csv", "jsonl", "txt", "xmp"]
TABLES: dict[str, Literal["csv", "jsonl"]] = {"csv": "csv", "jsonl": "jsonl"}


class StoredCaptions:
    """Where captions are stored, which images need one, and what has become of them."""

    def __init__(
        self, kind: WriteKind | None, embed: bool, replace: bool, sidecar: Literal["full", "stem"] | None
    ) -> None:
        """Check the options; SettingsError for one without effect."""
        if kind is None and not embed:
            refuse({"--replace": replace}, "has an effect only with --write or --embed; add one of them")
        if kind != "xmp":
            refuse({"--sidecar": sidecar}, "has an effect only with --write xmp; add it, or leave it out")
        self._kind, self._embed, self._replace = kind, embed, replace
        self._sidecar: Literal["full", "stem"] = sidecar or "full"
        self._folders: list[Path] = []
        self._unlisted: deque[Path] = deque()  # files in their order, for tables
        self._not_described: dict[Path, KeptCaption | LimnerError] = {}
        self.errors: list[LimnerError] = []
        self.total = self.written = self.kept = self.unsure = 0

    def select(self, files: Sequence[Path], named: Sequence[Path]) -> list[Path]:
        """Return the files that need a caption; nothing is computed for those that have one.

        Tables list all files: those that have a caption with it, in the column 'origin' as of the file.

        Args:
            files: files to describe.
            named: files and folders that the user named.

        Raises:
            SettingsError: a table exists or cannot be written, or two files have the same text file or sidecar.
        """
        self.total = len(files)
        self._folders = [path for path in named if path.is_dir()]
        self._require_files_beside(files)
        if self._kind in TABLES:
            for table in dict.fromkeys(map(self._table_of, files)):
                if table.exists() and not self._replace:
                    raise SettingsError(f"--write {self._kind}: {table} exists; add --replace to replace it")
                require_writable(table.parent, f"--write {self._kind} {table}")
            self._unlisted.extend(files)
        return [file for file in files if self._needs_caption(file)]

    def complete(self, files: Sequence[Path]) -> bool:
        """Whether no file needs a caption, so that the model is not loaded; the numbers are printed then."""
        if not files:
            with self.opened(""):  # lists the captions that are kept
                pass
            self.report()
        return not files

    @contextmanager
    def opened(self, lang: str, columns: Sequence[str] = ()) -> Iterator[WriteCaptions]:
        """Yield a function that stores the captions of one image.

        Args:
            lang: language code of the captions.
            columns: what tables have besides captions; see `caption_output`.
        """
        shown = (*columns, *(["origin"] if self._embed else []))
        tables: dict[Path, WriteCaptions] = {}
        with ExitStack() as stack:

            def list_in_table(file: Path, result: list[Sentence] | KeptCaption | LimnerError) -> None:
                table = self._table_of(file)
                if table not in tables:
                    tables[table] = stack.enter_context(caption_output(table, TABLES[self._kind or ""], shown))
                tables[table](file.relative_to(table.parent), result)

            def list_until(file: Path | None) -> None:
                while self._unlisted and (unlisted := self._unlisted.popleft()) != file:
                    list_in_table(unlisted, self._not_described[unlisted])

            def write(file: Path, result: list[Sentence] | KeptCaption | LimnerError) -> None:
                if self._kind in TABLES:
                    list_until(file)
                    list_in_table(file, result)
                if isinstance(result, list) and (self._kind or self._embed):
                    self.unsure += not result[0].is_sure
                    if result[0].is_sure and result[0].text.strip():
                        self._store(file, result[0].text, lang)

            yield write
            list_until(None)

    def report(self) -> None:
        """Print how many images have got a caption, have kept theirs, and have none that the model is sure of."""
        if not self.written + self.kept + self.unsure or (self._kind is None and not self._embed):
            return
        kept = f", {self.kept:,} kept (--replace replaces them)" if self.kept else ""
        unsure = f", {self.unsure:,} not sure and not written" if self.unsure else ""
        err.print(f"captions: {self.written:,} written{kept}{unsure}", soft_wrap=True, highlight=False)

    def _needs_caption(self, file: Path) -> bool:
        if (self._kind in (None, *TABLES) and not self._embed) or not file.exists():
            return True
        try:
            text = self._stored_text(file)
        except LimnerError as error:
            self.errors.append(error)
            self._not_described[file] = error
            return False
        if not text or self._replace:
            return True
        self.kept += 1
        self._not_described[file] = KeptCaption(text)
        return False

    def _stored_text(self, file: Path) -> str:
        """Return the caption that an image has already, empty for none; LimnerError if none can be stored.

        A caption of a person in the file or in a sidecar of the other name would be hidden by a new sidecar.
        """
        from limner.apps.photos.captions import caption_in_file, caption_of_sidecar, require_embeddable

        if self._embed:
            require_embeddable(file)
        if self._kind == "txt":
            text_file = self._file_beside(file)
            return text_file.name if text_file.exists() and text_file.stat().st_size else ""
        text = ""
        if self._kind == "xmp" and not (text := caption_of_sidecar(file, self._sidecar)):
            with suppress(LimnerError):  # nothing is written to a sidecar of the other name
                text = caption_of_sidecar(file, "stem" if self._sidecar == "full" else "full")
        return text or caption_in_file(file)

    def _store(self, file: Path, text: str, lang: str) -> None:
        from limner.apps.photos.captions import embed_caption, write_sidecar

        is_written = self._kind in TABLES
        try:
            if self._kind == "txt":
                write_text(self._file_beside(file), f"{text}\n")
                is_written = True
            elif self._kind == "xmp":
                is_written = write_sidecar(file, text, lang, name=self._sidecar, replace=self._replace)
            if self._embed:
                is_written |= embed_caption(file, text, lang, replace=self._replace)
        except LimnerError as error:
            self.errors.append(error)
        else:
            self.written += is_written
            self.kept += not is_written

    def _file_beside(self, file: Path) -> Path:
        """Return the text file or sidecar of a file."""
        from limner.apps.photos.captions import existing_path, sidecar_path

        return existing_path(file.with_suffix(".txt")) if self._kind == "txt" else sidecar_path(file, self._sidecar)

    def _require_files_beside(self, files: Sequence[Path]) -> None:
        """Refuse two images with one text file or sidecar, also where names that differ in case are equal."""
        if self._kind == "xmp" and self._sidecar == "stem":
            option, remedy = "--sidecar stem", "leave out --sidecar stem"
        elif self._kind == "txt":
            option, remedy = "--write txt", "use --write xmp"
        else:
            return
        images: dict[tuple[Path, str], Path] = {}
        for file in filter(Path.exists, files):
            path = self._file_beside(file)
            other = images.setdefault((path.parent.resolve(), normalize("NFC", path.name).casefold()), file)
            if not other.samefile(file):
                raise SettingsError(
                    f"{option}: the captions of {other} and {file} would be in one file, {path.name}; rename one of "
                    f"the images, or {remedy}"
                )

    def _table_of(self, file: Path) -> Path:
        """Return the table of a file: in the folder that the user named, else in that of the file."""
        folder = next((folder for folder in self._folders if file.is_relative_to(folder)), file.parent)
        return folder / f"captions.{self._kind}"

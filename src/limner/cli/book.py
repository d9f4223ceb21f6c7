"""The command that writes the reproduction book: book."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from limner.cli.app import MORE, app
from limner.cli.options import JsonOption
from limner.cli.terminal import echo, print_json
from limner.storage.outputs import claim_folder

if TYPE_CHECKING:
    from limner.reproduce.book.record import TableRecord

TablesArgument = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[TABLE]...",
        help="Folders of 'limner reproduce'; default: the records of the tables measured with Limner, in the package.",
        show_default=False,
    ),
]
RecordsOption = Annotated[
    Path | None,
    typer.Option(
        "--records",
        metavar="DIR",
        help="Folder of records: the rows of the tables are added to it, and the pages show all of them.",
    ),
]


@app.command(rich_help_panel=MORE)
def book(
    tables: TablesArgument = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the pages.")] = Path("reproduction"),
    records: RecordsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the reproduction book: a page for each paper, with every row, published and reproduced, and verdicts.

    Example: `limner book runs/table1 --out book`
    """
    from limner.reproduce.book import page_names, write_book

    index, *papers = page_names()
    claim_folder(out, "--out", records={index: papers[0], **dict.fromkeys(papers, index)})
    collected = _collect(tables or [], records)
    pages = write_book(collected, out)
    if as_json:
        print_json({"tables": [record.name for record in collected], "pages": [str(page) for page in pages]})
        return
    echo(f"{', '.join(str(page) for page in pages)}")


def _collect(tables: list[Path], folder: Path | None) -> list[TableRecord]:
    """Collect the records of tables, added to those of a folder; without either, those measured with Limner."""
    from limner.reproduce.book import MEASURED, collect, merged, read_records

    if not tables:
        return read_records(folder or MEASURED)
    stored = {record.name: record for record in read_records(folder)} if folder and folder.exists() else {}
    for record in map(collect, tables):
        older = stored.get(record.name)
        stored[record.name] = record if older is None else merged(older, record)
        if folder is not None:
            stored[record.name].save(folder / f"{record.name}.json")
    return [stored[name] for name in sorted(stored)]

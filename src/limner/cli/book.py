"""The command that writes the reproduction book: book."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from limner.cli.app import MORE, app
from limner.cli.options import JsonOption
from limner.cli.terminal import echo, print_json
from limner.storage.outputs import claim_folder

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
    from limner.reproduce.book import MEASURED, collect, merged, page_names, read_records, write_book

    index, *papers = page_names()
    claim_folder(out, "--out", records={index: papers[0], **dict.fromkeys(papers, index)})
    collected = [collect(folder) for folder in tables or ()]
    if records is not None:
        before = {record.name: record for record in read_records(records)}
        for record in collected:
            older = before.get(record.name)
            (record if older is None else merged(older, record)).save(records / f"{record.name}.json")
    stored = read_records(records) if records is not None else read_records(MEASURED) if not tables else collected
    pages = write_book(stored, out)
    if as_json:
        print_json({"tables": [record.name for record in stored], "pages": [str(page) for page in pages]})
        return
    echo(f"{', '.join(str(page) for page in pages)}")

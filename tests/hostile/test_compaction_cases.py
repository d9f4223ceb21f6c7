"""Compaction of collections that are damaged, of something else, or named wrongly."""

from __future__ import annotations

from pathlib import Path

from cases import Case, case, check, for_all


def _cut_versions(table: Path) -> None:
    """Cut the versions of a table in half."""
    for file in (table / "_versions").glob("*.manifest"):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@for_all(
    case("compact c", "items: 1 -> 1 fragments", status=0, creates="c"),
    case("compact c --json", '"fragments_after": 1', status=0, creates="c"),
    case("compact nowhere", "nowhere", "limner import"),
    case("compact notes.txt", "notes.txt"),
    case("compact photos", "photos", "not a collection"),
    case("compact captioner", "captioner", "not a collection"),
    case("compact c --older-than -1", "--older-than", "-1", status=2),
    case("compact c --older-than nan", "--older-than", "nan", status=2),
    case("compact c --older-than week", "--older-than", "week", status=2),
    case("compact ftp://host/c", "ftp", "s3"),
    case("compact empty", "items.lance", "damaged", files={"empty/items.lance/data/a.lance": b""}),
    case("compact c", "pixels16", files={"c/features/pixels16.lance": _cut_versions}, creates="c"),
)
def test_compaction(case: Case, work: Path) -> None:
    check(case, work)

"""Reading of records, and the layout of a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from firesteel.measure.record import Record

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "records"


def read(folder: Path, pattern: str) -> list[Record]:
    """Returns the records of a folder, sorted by file name."""
    return [Record.load(path) for path in sorted(folder.glob(pattern))]


def read_in_time(folder: Path, pattern: str) -> list[Record]:
    """Returns records in the order in which they were measured."""
    return sorted(read(folder, pattern), key=lambda record: record.surroundings.time_utc)


def format_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns a table in Markdown."""
    lines = [_join(heads), "|---" * len(heads) + "|", *map(_join, rows)]
    return "\n".join(lines)


def _join(cells: Sequence[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"

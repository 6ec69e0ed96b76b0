"""What ran when, from a profile: PyTorch's JSON or nsys's SQLite; knows no engine and no category."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firesteel.errors import UserError
from firesteel.lab.path.trace import refuse_whole_graphs

SQLITE, GZIP = b"SQLite format 3\x00", b"\x1f\x8b"
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_op")  # PyTorch's categories
QUERIES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "SELECT names.value, one.start, one.end FROM CUPTI_ACTIVITY_KIND_KERNEL AS one "
        "JOIN StringIds AS names ON names.id = one.demangledName"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": "SELECT 'memcpy', start, end FROM CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET": "SELECT 'memset', start, end FROM CUPTI_ACTIVITY_KIND_MEMSET",
}


@dataclass(frozen=True, slots=True)
class Slice:
    name: str
    start_us: float
    end_us: float


def read_timeline(path: Path) -> list[Slice]:
    """All that ran on the GPU, by start; of a profile without a GPU, the outermost CPU ops."""
    try:
        with path.open("rb") as file:
            head = file.read(len(SQLITE))
    except OSError as error:
        raise UserError(f"cannot read the profile {path}: {error.strerror}") from error
    found = read_nsys(path) if head == SQLITE else read_pytorch(path, is_packed=head.startswith(GZIP))
    if not found:
        raise UserError(f"{path} holds no kernel and no op: profile a few decoding steps with CUDA activities on")
    return sorted(found, key=lambda one: (one.start_us, -one.end_us))


def read_nsys(path: Path) -> list[Slice]:
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            refuse_whole_graphs(database, path)
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            rows = [row for table, query in QUERIES.items() if table in tables for row in database.execute(query)]
    except sqlite3.Error as error:
        raise UserError(f"{path} is no export of nsys: {error}") from error
    return [Slice(str(name), start / 1e3, end / 1e3) for name, start, end in rows]


def read_pytorch(path: Path, *, is_packed: bool = False) -> list[Slice]:
    try:
        with gzip.open(path, "rb") if is_packed else path.open("rb") as file:
            events: Any = json.load(file)["traceEvents"]
        on_gpu = _slices(event for event in events if event.get("cat") in ON_GPU)
        return on_gpu or outermost(_slices(event for event in events if event.get("cat") == "cpu_op"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
        raise UserError(f"{path} is no profile of PyTorch: {type(error).__name__}: {error}") from error


def outermost(slices: Sequence[Slice]) -> list[Slice]:
    """Without those that run inside another: an op that calls ops counts once."""
    kept: list[Slice] = []
    for one in sorted(slices, key=lambda one: (one.start_us, -one.end_us)):
        if not kept or one.start_us >= kept[-1].end_us:
            kept.append(one)
    return kept


def _slices(events: Iterable[dict[str, Any]]) -> list[Slice]:
    return [
        Slice(event["name"], float(event["ts"]), float(event["ts"]) + float(event["dur"]))
        for event in events
        if "dur" in event
    ]

"""Reads profiles: the JSON of PyTorch's profiler, plain or gzipped, and the SQLite export of nsys."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firesteel.errors import UserError

SQLITE_MAGIC, GZIP_MAGIC = b"SQLite format 3\x00", b"\x1f\x8b"
KERNEL, COPY, CPU_OP = "kernel", "copy", "CPU op"
# Categories of PyTorch's events.
KINDS = {"kernel": KERNEL, "gpu_op": KERNEL, "gpu_memcpy": COPY, "gpu_memset": COPY, "cpu_op": CPU_OP}
KERNEL_TABLE = "CUPTI_ACTIVITY_KIND_KERNEL"
QUERIES = {
    KERNEL_TABLE: (
        f"SELECT names.value, '{KERNEL}', kernels.start, kernels.end FROM {KERNEL_TABLE} AS kernels "
        "JOIN StringIds AS names ON names.id = kernels.demangledName"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"SELECT 'memcpy', '{COPY}', start, end FROM CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"SELECT 'memset', '{COPY}', start, end FROM CUPTI_ACTIVITY_KIND_MEMSET",
}
# One row per replay of a CUDA graph, whose kernels are then in no table.
GRAPH_TABLE = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"


@dataclass(frozen=True, slots=True)
class Slice:
    """The time span of one kernel, copy or op."""

    name: str
    start_us: float
    end_us: float


@dataclass(frozen=True, slots=True)
class TraceEvent:
    slice: Slice
    kind: str  # KERNEL, COPY or CPU_OP


def read_timeline(path: Path) -> list[Slice]:
    """Returns everything that ran on the GPU, ordered by start; without a GPU, the outermost CPU ops."""
    return order_timeline(read_events(path), path)


def order_timeline(events: Sequence[TraceEvent], path: Path) -> list[Slice]:
    """Returns what `read_timeline` does, of events that were read already."""
    on_gpu = [event.slice for event in events if event.kind != CPU_OP]
    slices = on_gpu or find_outermost([event.slice for event in events])
    if not slices:
        raise UserError(f"{path} holds no kernel and no op: profile a few decoding steps with CUDA activities on")
    return sorted(slices, key=_by_start)


def cut(
    slices: Sequence[Slice], from_s: float | None, to_s: float | None
) -> tuple[list[Slice], tuple[float, float]]:
    """Returns what ran in a window, seconds after the first start, and the window on the slices' own clock."""
    begin, last = slices[0].start_us, max(piece.end_us for piece in slices)
    low, high = begin + 1e6 * (from_s or 0.0), last if to_s is None else min(last, begin + 1e6 * to_s)
    inside = [
        Slice(piece.name, max(low, piece.start_us), min(high, piece.end_us))
        for piece in slices
        if piece.end_us > low and piece.start_us < high
    ]
    if not inside:
        raise UserError(
            f"nothing ran between {from_s or 0:g} and {'the end' if to_s is None else f'{to_s:g} s'}; "
            f"the profile is {(last - begin) / 1e6:.3f} s long"
        )
    return inside, (low, high)


def count_kernels(path: Path) -> Counter[str]:
    """Returns launches per kernel; of a profile that has CPU ops only, calls per op."""
    events = read_events(path)
    kernels = Counter(event.slice.name for event in events if event.kind == KERNEL)
    return kernels or Counter(event.slice.name for event in events if event.kind == CPU_OP)


def read_events(path: Path) -> list[TraceEvent]:
    try:
        with path.open("rb") as file:
            head = file.read(len(SQLITE_MAGIC))
    except OSError as error:
        raise UserError(f"cannot read the profile {path}: {error.strerror}") from error
    if head == SQLITE_MAGIC:
        return _read_nsys(path)
    return _read_pytorch(path, is_packed=head.startswith(GZIP_MAGIC))


def find_outermost(slices: Sequence[Slice]) -> list[Slice]:
    """Drops slices inside another one, so that an op that calls other ops counts once."""
    kept: list[Slice] = []
    for piece in sorted(slices, key=_by_start):
        if not kept or piece.start_us >= kept[-1].end_us:
            kept.append(piece)
    return kept


def _by_start(piece: Slice) -> tuple[float, float]:
    """Orders slices by start, the longer one first."""
    return piece.start_us, -piece.end_us


def _read_nsys(path: Path) -> list[TraceEvent]:
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if KERNEL_TABLE not in tables:
                raise UserError(
                    f"{path} is not an export of nsys with CUDA kernels: it has no table {KERNEL_TABLE}"
                )
            _refuse_whole_graphs(database, tables, path)
            rows = [row for table, query in QUERIES.items() if table in tables for row in database.execute(query)]
    except sqlite3.Error as error:
        raise UserError(f"{path} is not an export of nsys: {error}") from error
    return [TraceEvent(Slice(str(name), start / 1e3, end / 1e3), kind) for name, kind, start, end in rows]


def _refuse_whole_graphs(database: sqlite3.Connection, tables: set[str], path: Path) -> None:
    """nsys records a replayed graph as one row unless told otherwise: decoding would look like idle time."""
    replays = database.execute(f"SELECT COUNT(*) FROM {GRAPH_TABLE}").fetchone()[0] if GRAPH_TABLE in tables else 0
    if replays:
        raise UserError(
            f"{path} has {replays} replays of CUDA graphs without the kernels inside them; "
            "record it again with `nsys profile --cuda-graph-trace=node`"
        )


def _read_pytorch(path: Path, *, is_packed: bool) -> list[TraceEvent]:
    try:
        with gzip.open(path, "rb") if is_packed else path.open("rb") as file:
            events: Any = json.load(file)["traceEvents"]
        return [_parse_event(event) for event in events if event.get("cat") in KINDS and "dur" in event]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
        raise UserError(f"{path} is not a profile of PyTorch: {type(error).__name__}: {error}") from error


def _parse_event(event: dict[str, Any]) -> TraceEvent:
    start_us = float(event["ts"])
    return TraceEvent(Slice(event["name"], start_us, start_us + float(event["dur"])), KINDS[event["cat"]])

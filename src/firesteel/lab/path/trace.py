"""Names of the kernels in a profile and how often each ran: PyTorch's JSON or nsys's SQLite; knows no engine."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from firesteel.errors import UserError

SQLITE = b"SQLite format 3\x00"
GZIP = b"\x1f\x8b"
ON_GPU = ("kernel", "gpu_op")  # categories of PyTorch's events; copies and fills have their own
QUERY = """
SELECT names.value, COUNT(*) FROM CUPTI_ACTIVITY_KIND_KERNEL AS kernels
JOIN StringIds AS names ON names.id = kernels.demangledName GROUP BY names.value
"""
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"  # a row a replay of a CUDA graph, whose kernels are then in no table


def read_kernels(path: Path) -> Counter[str]:
    """Launches by kernel; on a profile of CPU ops alone, calls by op."""
    try:
        with path.open("rb") as file:
            head = file.read(len(SQLITE))
    except OSError as error:
        raise UserError(f"cannot read the profile {path}: {error.strerror}") from error
    return read_nsys(path) if head == SQLITE else read_pytorch(path, is_packed=head.startswith(GZIP))


def read_nsys(path: Path) -> Counter[str]:
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            refuse_whole_graphs(database, path)
            return Counter(dict(database.execute(QUERY).fetchall()))
    except sqlite3.Error as error:
        raise UserError(f"{path} is no export of nsys with CUDA kernels in it: {error}") from error


def refuse_whole_graphs(database: sqlite3.Connection, path: Path) -> None:
    """nsys records a replayed graph as one row unless told otherwise: decoding would look like idle time."""
    if not database.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (GRAPHS,)).fetchone():
        return
    (replays,) = database.execute(f"SELECT COUNT(*) FROM {GRAPHS}").fetchone()
    if replays:
        raise UserError(
            f"{path} has {replays} replays of CUDA graphs without the kernels inside them; "
            "record it again with `nsys profile --cuda-graph-trace=node`"
        )


def read_pytorch(path: Path, *, is_packed: bool = False) -> Counter[str]:
    try:
        with gzip.open(path, "rb") if is_packed else path.open("rb") as file:
            content: Any = json.load(file)
        events = content["traceEvents"]
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise UserError(f"{path} is no profile of PyTorch: {type(error).__name__}: {error}") from error
    found = Counter(event["name"] for event in events if event.get("cat") in ON_GPU)
    return found or Counter(event["name"] for event in events if event.get("cat") == "cpu_op")

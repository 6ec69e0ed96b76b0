"""Tables of ops: ours over the number of tokens, and kernel libraries beside ours."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from firesteel.measure.record import Record
from tables.records import RECORDS, format_table, read

OPS = RECORDS / "h200-ops"
LIBRARIES = RECORDS / "h200-libraries"
LIBRARY_OPS = RECORDS / "h200-library-ops"
SHOWN_M = (1, 8, 32, 64, 512, 2048, 8192)


def read_ops(folder: Path = OPS) -> list[Record]:
    """Returns the records of ops without rounded activations, without ceilings."""
    records = read(folder, "*.json")
    return [
        record
        for record in records
        if record.name.startswith("op ") and record.parameters["activation"] in ("", "bf16")
    ]


def ops_table(records: list[Record]) -> str:
    """Returns a row per op and part, a column per M: time and share of ceiling of the fastest implementation."""
    best: dict[tuple[str, str], dict[int, Record]] = defaultdict(dict)
    for record in records:
        row = best[record.parameters["op"], record.parameters["part"]]
        m = record.parameters["m"]
        if m not in row or record.median < row[m].median:
            row[m] = record
    rows = [
        [f"{op} {part}".rstrip(), *(_cell(row.get(m)) for m in SHOWN_M)] for (op, part), row in sorted(best.items())
    ]
    return format_table(["op", *(f"M = {m}" for m in SHOWN_M)], [row for row in rows if any(row[1:])])


def _cell(record: Record | None) -> str:
    if record is None:
        return ""
    share, bound = record.parameters["share"], record.parameters["bound"]
    return f"{record.median * 1e6:,.0f} us, {100 * share:.0f} % {bound}"


def read_libraries(folder: Path = LIBRARIES) -> list[Record]:
    """Returns the records of kernel libraries and of ours beside them, by number of tokens."""
    return sorted(read(folder, "op-*.json"), key=lambda record: record.parameters["m"])


def library_table(records: list[Record]) -> str:
    """Returns a row per M: our fastest implementation, the library from each start, and our share of its time."""
    ours: dict[int, Record] = {}
    theirs: dict[int, dict[str, Record]] = defaultdict(dict)
    for record in records:
        m = record.parameters["m"]
        if not record.kernels:
            theirs[m][record.parameters["start"]] = record
        elif m not in ours or record.median < ours[m].median:
            ours[m] = record

    def row(m: int) -> list[object]:
        times = [theirs[m][start].median for start in ("ids", "logits", "sorted pairs")]
        shares = [f"{ours[m].median / time:.2f}" for time in times[:2]]
        shown = [f"{time * 1e6:,.1f}" for time in (ours[m].median, *times)]
        return [m, f"`{ours[m].parameters['implementation']}`", *shown, *shares]

    heads = [
        "tokens",
        "ours",
        "us",
        "triton_kernels from ids, us",
        "from logits, us",
        "matmuls only, us",
        "ours / from ids",
        "ours / from logits",
    ]
    return format_table(heads, map(row, ours))


def read_library_ops(folder: Path = LIBRARY_OPS) -> list[Record]:
    """Returns the records of `bench ops` in which libraries ran as implementations, by number of tokens."""
    return sorted(read(folder, "op-*.json"), key=lambda record: record.parameters["m"])


def implementation_table(records: list[Record]) -> str:
    """Returns a row per M: our fastest implementation, those of libraries, and our share of the fastest of them."""
    times: dict[int, dict[str, float]] = defaultdict(dict)
    for record in records:
        times[record.parameters["m"]][record.parameters["implementation"]] = record.median
    names = sorted({name for row in times.values() for name in row if _is_library(name)}, reverse=True)
    rows = []
    for m, row in times.items():
        ours = min((name for name in row if not _is_library(name)), key=row.__getitem__)
        shown = [f"{row[name] * 1e6:,.1f}" if name in row else "" for name in names]
        share = row[ours] / min(row[name] for name in row if _is_library(name))
        rows.append([m, f"`{ours}`", f"{row[ours] * 1e6:,.1f}", *shown, f"{share:.2f}"])
    heads = ["tokens", "ours", "us", *(f"`{name}`, us" for name in names), "ours / fastest library"]
    return format_table(heads, rows)


def _is_library(implementation: str) -> bool:
    return implementation.partition(":")[0] in ("triton_kernels", "flashinfer")

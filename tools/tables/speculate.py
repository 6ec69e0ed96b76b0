"""The table of steps that verify drafted tokens."""

from __future__ import annotations

from pathlib import Path

from firesteel.measure.record import Record
from tables.records import RECORDS, format_table, read

SPECULATE = RECORDS / "h200-speculate"


def read_verify(folder: Path = SPECULATE) -> list[Record]:
    """Returns the records by number of requests and rows."""
    records = read(folder, "verify-*.json")
    return sorted(records, key=lambda record: (record.parameters["requests"], record.parameters["rows"]))


def verify_table(records: list[Record]) -> str:
    """Returns a row per number of rows, with the time of one request's step and of two requests' step."""
    by_case = {(record.parameters["requests"], record.parameters["rows"]): record for record in records}
    requests = sorted({requests for requests, _ in by_case})
    heads = ["rows each"]
    for count in requests:
        words = "1 request" if count == 1 else f"{count} requests"
        heads += [f"{words}: ms", "in plain steps", "by bytes", "break-even acceptance"]
    rows = []
    for number in sorted({number for _, number in by_case}):
        cells: list[object] = [number]
        for count in requests:
            facts = by_case[count, number].parameters
            cells.append(f"{by_case[count, number].median:.2f}")
            if number == 1:
                cells += ["1", "", ""]
                continue
            cost, predicted = facts["cost_in_steps"], facts["predicted_cost"]
            cells += [f"{cost:.2f}", f"{predicted:.2f}", f"{100 * facts['break_even_acceptance']:.0f} %"]
        rows.append(cells)
    return format_table(heads, rows)

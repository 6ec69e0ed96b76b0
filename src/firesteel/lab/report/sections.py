"""Sections of a report other than speed: levels, kernels, memory, matrix, environment; knows no format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from firesteel.lab.report.charts import Line, line_chart, short
from firesteel.lab.report.document import BAD, DOUBTFUL, GOOD, PLAIN, Cell, Chart, Fold, Paragraph, Part, Raw, Table

Whole = Mapping[str, Any]
Rows = list[list[Cell | str]]
GIB = 1 << 30
MOST_ROWS = 400
MET = {True: Cell("yes", GOOD), False: Cell("no", BAD), None: Cell("unclear", DOUBTFUL)}
PROOFS = {"native-fp4": GOOD, "fp8": GOOD, "int8": GOOD, "none": PLAIN}  # others are doubtful


def levels(rows: Sequence[Mapping[str, Any]], whole: Whole) -> list[Part]:
    table = Table(
        ["level", "verdict", "why", "s"],
        [
            [f"{one['level']} {one.get('title', '')}", _verdict(one), str(one.get("reason", "")),
             f"{one.get('seconds', 0.0):.1f}"]
            for one in rows
        ],
    )  # fmt: skip
    return [table, *(Fold(f"level {one['level']}: {one.get('title', '')}", _level(one)) for one in rows)]


def _level(level: Mapping[str, Any]) -> list[Part]:
    """What it looked at, and its figures."""
    figures = dict(level.get("figures") or {})
    checks = figures.pop("checks", [])
    rows: Rows = [
        [str(one["check"]), Cell("passed", GOOD) if one["passed"] else Cell("failed", BAD), str(one["words"])]
        for one in checks
    ]
    table = [Table(["check", "verdict", "found"], rows)] if rows else []
    return [*table, Raw("figures", figures)] if figures else [*table]


def backend(found: Any, whole: Whole) -> list[Part]:
    """What was seen of the engine's choices, and what of it was wrong."""
    if not isinstance(found, Mapping) or "seen" not in found:
        return anything(found, whole)
    parts: list[Part] = [Paragraph(f"fault: {fault}", BAD) for fault in found.get("faults") or ()]
    about = found.get("about") or {}
    rows: Rows = [
        [str(sign), str(about.get(sign, "")), "; ".join(map(str, lines[:2]))]
        for sign, lines in found["seen"].items()
    ]
    path = found.get("path") or {}
    name = (path.get("name") if isinstance(path, Mapping) else str(path)) or "any that is no fallback"
    parts.append(Table(["seen", "meaning", "where"], rows, f"{found.get('engine', '')}, judged as path: {name}"))
    return [*parts, Raw("backend", found)]


def _verdict(level: Mapping[str, Any]) -> Cell:
    if not level.get("was_run", True):
        return Cell("not run", DOUBTFUL)
    if not level["passed"]:
        return Cell("failed", BAD)
    return Cell("passed", GOOD) if level.get("valid", True) else Cell("does not count", BAD)


def kernels(rows: Any, whole: Whole) -> list[Part]:
    """What ran, with the proof of each artefact where there is one; with times where calls were timed, which they
    are not on a GPU."""
    if not _are_rows(rows):
        return anything(rows, whole)
    is_timed = any(row.get("seconds") for row in rows)
    shown: Rows = []
    for row in rows:
        calls, seconds = row.get("calls"), row.get("seconds")
        each = f"{1e6 * seconds / calls:.0f}" if calls and seconds else ""
        launches = row.get("launches") or {}
        names = ", ".join(f"{count} x {name}" for name, count in launches.items()) or "no kernel of its own"
        shown.append(
            [str(row.get("op", "")), str(row.get("implementation", "")), str(row.get("activation", "")),
             "" if calls is None else str(calls), *[each] * is_timed, _proof(row), names]
        )  # fmt: skip
    headings = ["op", "implementation", "activations", "calls", *["us a call"] * is_timed, "proof", "launched"]
    return [Table(headings, shown, "from the ledger: what was called, not what was planned"), Raw("ledger", rows)]


def _proof(row: Mapping[str, Any]) -> Cell:
    """What the matrix instructions are in the machine code that ran.

    Rounded activations that were multiplied as bf16 are doubtful: a fallback where a GPU could do otherwise."""
    verdicts = {code["verdict"] or "not read yet" for code in row.get("artefacts") or ()}
    shown = sorted(verdicts - {"none"}) or sorted(verdicts)
    is_rounded = row.get("activation") in ("mxfp8", "mxfp4")
    tones = {PROOFS.get(one, DOUBTFUL) if one != "bf16" or is_rounded else PLAIN for one in shown}
    tone = next((one for one in (DOUBTFUL, GOOD) if one in tones), PLAIN)
    return Cell(", ".join(shown) or "-", tone)


def memory(found: Mapping[str, Sequence[Any]], whole: Whole) -> list[Part]:
    """Over the whole run: `seconds`, `host_bytes`, `gpu_bytes`."""
    lines = []
    for name, title in (("host_bytes", "server's processes"), ("gpu_bytes", "GPU")):
        pairs = zip(found["seconds"], found.get(name) or (), strict=False)
        points = [(at, used / GIB) for at, used in pairs if used is not None]
        lines += [Line(title, points)] if len(points) > 1 else []
    return [memory_chart(lines), Raw("samples", found)] if lines else []


def memory_chart(lines: Sequence[Line]) -> Chart:
    last = max(line.points[-1][0] for line in lines) or 1.0
    ticks = [round(last * part / 4, 1 if last < 40 else 0) for part in range(5)]
    rows = [
        [
            line.name,
            f"{line.points[0][1]:.2f}",
            f"{max(y for _, y in line.points):.2f}",
            f"{line.points[-1][1]:.2f}",
        ]
        for line in lines
    ]
    svg = line_chart(lines, x_title="seconds", y_title="GiB", ticks=ticks)
    return Chart("Memory over time", svg, Table(["memory (GiB)", "first", "most", "last"], rows))


def review(found: Mapping[str, Any], whole: Whole) -> list[Part]:
    """The sheet: hypothesis, criteria, result, verdict."""
    tone = {"accepted": GOOD, "rejected": BAD}.get(found["verdict"], DOUBTFUL)
    rows: Rows = [[one["criterion"], one["wanted"], one["found"], MET[one["met"]]] for one in found["criteria"]]
    sides = (
        f"{found['gate']}={found['off']} against {found['gate']}={found['on']}, {found['rounds']} rounds of each"
    )
    return [
        Paragraph(f"Hypothesis: {found['hypothesis']}"),
        Table(["criterion", "wanted", "result", "met"], rows, sides),
        Paragraph(f"Verdict: {found['verdict']}. {found['why']}", tone),
    ]


def comparison(found: Any, whole: Whole) -> list[Part]:
    if not isinstance(found, Mapping) or not _are_rows(found.get("rows")):
        return anything(found, whole)
    tones = {"slower": BAD, "more memory": BAD, "faster": GOOD, "less memory": GOOD}
    rows: Rows = [
        [str(one["name"]), str(one["figure"]), f"{100 * one['change']:+.1f} %",
         Cell(one["verdict"], tones.get(one["verdict"], PLAIN)), short(one["before"]), short(one["after"]),
         one["unit"], f"{100 * one['low']:+.1f} to {100 * one['high']:+.1f} %"]
        for one in found["rows"]
    ]  # fmt: skip
    headings = ["workload", "figure", "change", "verdict", "before", "after", "unit", "interval of the change"]
    is_unclear = any(one["verdict"] == "unclear" for one in found["rows"])
    tone = BAD if found.get("regressions") else DOUBTFUL if is_unclear else GOOD
    note = "95 % of such tables have every true change within its interval"
    return [Paragraph(str(found.get("words", "")), tone), Table(headings, rows, note), Raw("comparison", found)]


def matrix(found: Any, whole: Whole) -> list[Part]:
    """A map of two gates at a time: the first along the side, the others across."""
    if not isinstance(found, Mapping) or not _are_rows(found.get("cells")):
        return anything(found, whole)
    cells = found["cells"]
    gates = list(found["gates"])
    parts: list[Part] = [Paragraph(found.get("words", ""))] if found.get("words") else []
    for figure, unit in (found.get("figures") or {"tg_tok_s": "tok/s"}).items():
        parts.append(_heat_map(cells, gates, figure, unit))
    return [*parts, Fold("every cell", [_cell_table(cells, gates)]), Raw("matrix", found)]


def _heat_map(cells: Sequence[Mapping[str, Any]], gates: Sequence[str], figure: str, unit: str) -> Table:
    side, across = gates[0], gates[1:]
    columns = list(dict.fromkeys(_label(one["gates"], across) for one in cells))
    names = list(dict.fromkeys(str(one["gates"][side]) for one in cells))
    known = {(str(one["gates"][side]), _label(one["gates"], across)): one for one in cells}
    values = [one["figures"][figure] for one in cells if figure in (one.get("figures") or {})]
    low, high = min(values, default=0.0), max(values, default=1.0)
    rows: Rows = [
        [f"{side}={name}", *(_heat(known.get((name, column)), figure, low, high) for column in columns)]
        for name in names
    ]
    return Table(
        [f"{figure} ({unit})", *(column or "value" for column in columns)],
        rows,
        "the stronger the colour, the higher",
    )


def _heat(cell: Mapping[str, Any] | None, figure: str, low: float, high: float) -> Cell:
    if cell is None:
        return Cell("not run", DOUBTFUL, heat=0.0)
    if cell["status"] != "done":
        return Cell(cell["status"], BAD, heat=0.0)
    value = cell["figures"].get(figure)
    if value is None:
        return Cell("-", heat=0.0)
    return Cell(short(value), heat=(value - low) / ((high - low) or 1.0) if high > low else 0.5)


def _cell_table(cells: Sequence[Mapping[str, Any]], gates: Sequence[str]) -> Table:
    figures = list(dict.fromkeys(name for one in cells for name in one.get("figures") or ()))
    rows: Rows = [
        [*(str(one["gates"][gate]) for gate in gates),
         Cell(one["status"], GOOD if one["status"] == "done" else BAD),
         *(short(one["figures"][name]) if name in (one.get("figures") or {}) else "" for name in figures),
         str(one.get("reason", ""))]
        for one in cells
    ]  # fmt: skip
    return Table([*gates, "status", *figures, "reason"], rows)


def _label(chosen: Mapping[str, Any], gates: Sequence[str]) -> str:
    return ", ".join(f"{gate}={chosen[gate]}" for gate in gates)


def environment(found: Mapping[str, Any], whole: Whole) -> list[Part]:
    versions = found.get("versions") or {}
    rows = [
        *((name, found.get(name)) for name in ("device", "capability", "time_utc", "commit", "is_dirty")),
        *((f"version of {name}", value) for name, value in versions.items()),
        ("command", " ".join(found.get("command") or ())),
        *(((found.get("gpu") or {}).items()) if found.get("gpu") else ()),
        *(found.get("environment") or {}).items(),
    ]
    known = [[str(name), str(value)] for name, value in rows if value not in (None, "", {}, [])]
    return [Table(["what", "value"], known), Raw("environment", found)]


def raw(result: Whole) -> list[Part]:
    return [Raw(str(name), value) for name, value in result.items()]


def anything(value: Any, whole: Whole) -> list[Part]:
    """Whatever it is: rows as a table, names and values as one, the rest as data."""
    if isinstance(value, str):
        return [Paragraph(value)]
    if _are_rows(value):
        headings = list(dict.fromkeys(str(key) for row in value for key in row))
        rows = [[_plain(row.get(heading)) for heading in headings] for row in value[:MOST_ROWS]]
        return [Table(headings, rows)]
    if not isinstance(value, Mapping):
        return [Raw("data", value)]
    simple: Rows = [
        [str(key), _plain(one)] for key, one in value.items() if not isinstance(one, Mapping | list | tuple)
    ]
    parts: list[Part] = [Table(["what", "value"], simple)] if simple else []
    for key, one in value.items():
        if isinstance(one, Mapping | list | tuple) and one:
            parts.append(Fold(str(key).replace("_", " "), anything(one, whole)))
    return parts


def _plain(value: Any) -> Cell:
    if isinstance(value, bool):
        return Cell("yes" if value else "no")
    if isinstance(value, float):
        return Cell(f"{value:.4g}")
    if isinstance(value, list | tuple) and not any(isinstance(one, Mapping | list) for one in value):
        return Cell(", ".join(map(str, value)))
    return Cell("" if value is None else str(value))


def _are_rows(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(one, Mapping) for one in value)

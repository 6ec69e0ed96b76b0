"""The tables of a board, the same for the page and the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from firesteel.lab.board.board import BoardSection, RankedEntry
from firesteel.lab.board.entry import BoardEntry, Measured
from firesteel.lab.board.targets import PublishedEngine, TargetVerdict
from firesteel.lab.report.number_format import count, interval, percent, precise
from firesteel.lab.standing import COHERENT_ONLY
from firesteel.lab.verdict import Verdict, conclude

DATE = 10  # characters of a time that are its date
TARGET_WORDS = {Verdict.PASSED: "met", Verdict.FAILED: "missed", Verdict.UNPROVEN: "not judged"}
PATH_WORDS = {
    Verdict.PASSED: "proven",
    Verdict.FAILED: "contradicted",
    Verdict.UNPROVEN: "unproven",
    Verdict.NOT_APPLICABLE: "not applicable",
}
ANSWERS = {
    None: "not asked",
    Verdict.PASSED: "coherent",
    Verdict.FAILED: "wrong",
    Verdict.UNPROVEN: "not judged",
    Verdict.NOT_APPLICABLE: "not applicable",
}


@dataclass(frozen=True, slots=True)
class BoardCell:
    text: str
    verdict: Verdict | None = None  # None: nothing is judged
    note: str = ""
    link: str = ""  # absolute path of a page


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardTable:
    headings: tuple[str, ...]
    rows: tuple[tuple[BoardCell, ...], ...]
    caption: str = ""


Column = tuple[str, Callable[[RankedEntry], BoardCell | str]]


def tabulate_section(section: BoardSection) -> BoardTable:
    """Returns a row per ranked configuration. Variables that all of them share are left out."""
    entries = [ranked.entry for ranked in section.ranked]
    shared = find_shared_variables(entries)
    depths = sorted({depth for entry in entries for depth in entry.by_depth if depth})
    columns: list[Column] = [
        ("configuration", lambda ranked: name_entry(ranked, shared)),
        ("tg tok/s", lambda ranked: show_headline(ranked, "tg_tok_s")),
        *((f"tg @ {count(depth)}", show_depth(depth)) for depth in depths),
        ("pp tok/s", lambda ranked: show_headline(ranked, "pp_tok_s")),
        ("of roof", lambda ranked: show_share(ranked.entry.share)),
        ("TTFT ms", lambda ranked: show_headline(ranked, "ttft_ms")),
        ("kernel path", lambda ranked: show_slots(ranked.entry)),
        ("answers", lambda ranked: show_answers(ranked.entry)),
        ("targets", show_targets),
        ("drafts", lambda ranked: show_drafts(ranked.entry)),
        ("doubts", lambda ranked: "; ".join(ranked.entry.doubts)),
        ("measured", show_time),
    ]
    caption = (
        f"{section.workload}, one stream: medians, and the interval of the mean over runs (95 %); "
        "tg @: speed of the answer after that many tokens of context"
    )
    return make_table(columns, section.ranked, caption)


def tabulate_unranked(entries: Sequence[BoardEntry]) -> BoardTable:
    shared = find_shared_variables(entries)
    headings = ("configuration", "verdict", "why", "model", "device", "tg tok/s", "measured")
    rows = tuple(
        tuple(
            cell if isinstance(cell, BoardCell) else BoardCell(cell)
            for cell in (
                BoardCell(entry.engine, note=describe_settings(entry, shared)),
                BoardCell("invalid" if entry.verdict is Verdict.FAILED else entry.verdict.value, entry.verdict),
                entry.fault,
                entry.model,
                entry.device,
                BoardCell(precise(entry.speed), note=entry.workload) if entry.workload else "",
                BoardCell((entry.time_utc or "unknown")[:DATE], note=entry.path, link=entry.report),
            )
        )
        for entry in entries
    )
    return BoardTable(headings=headings, rows=rows)


def tabulate_targets(verdicts: Iterable[TargetVerdict]) -> BoardTable:
    rows = tuple(
        (
            BoardCell(row.name),
            BoardCell(row.wanted),
            BoardCell("")
            if row.found is None
            else BoardCell(precise(row.found.value), note=show_interval(row.found)),
            BoardCell(TARGET_WORDS[row.verdict], row.verdict),
            BoardCell(row.reason),
        )
        for row in verdicts
    )
    return BoardTable(headings=("target", "wanted", "best so far", "verdict", "why"), rows=rows)


def tabulate_published(engines: Sequence[PublishedEngine]) -> BoardTable:
    """Returns the figures of other engines, by depth; they have no interval and no rank."""
    depths = sorted({depth for engine in engines for depth in (*engine.pp_tok_s, *engine.tg_tok_s)})
    columns = [("pp tok/s", "pp_tok_s"), ("tg tok/s", "tg_tok_s"), ("TTFT ms", "ttft_ms"), ("TPOT ms", "tpot_ms")]
    kept = [
        (heading if not depth else f"{heading} @ {count(depth)}", name, depth)
        for heading, name in columns
        for depth in depths
        if any(depth in getattr(engine, name) for engine in engines)
    ]
    rows = tuple(
        (
            BoardCell(engine.name),
            *(BoardCell(show_published(engine, name, depth)) for _, name, depth in kept),
            BoardCell(engine.source),
        )
        for engine in engines
    )
    return BoardTable(headings=("engine", *(heading for heading, _, _ in kept), "source"), rows=rows)


def make_table(columns: Sequence[Column], items: Sequence[RankedEntry], caption: str) -> BoardTable:
    """Leaves out columns without a value."""
    written = [
        (heading, [cell if isinstance(cell, BoardCell) else BoardCell(cell) for cell in map(show, items)])
        for heading, show in columns
    ]
    kept = [(heading, cells) for heading, cells in written if any(cell.text for cell in cells)]
    rows = tuple(zip(*(cells for _, cells in kept), strict=True))
    return BoardTable(headings=tuple(heading for heading, _ in kept), rows=rows, caption=caption)


def name_entry(ranked: RankedEntry, shared: frozenset[tuple[str, str]]) -> BoardCell:
    return BoardCell(f"{ranked.rank}. {ranked.entry.engine}", note=describe_settings(ranked.entry, shared))


def show_interval(figure: Measured) -> str:
    if figure.low is None or figure.high is None:
        return "too few runs"
    return interval(figure.low, figure.high)


def show_time(ranked: RankedEntry) -> BoardCell:
    """Shows the date, and whether this was the best until then."""
    when = (ranked.entry.time_utc or "")[:DATE]
    state = "best so far" if ranked.rank == 1 else "was best" if ranked.was_best else ""
    words = ", ".join(filter(None, (state, ranked.entry.path)))
    return BoardCell(when or "unknown", note=words, link=ranked.entry.report)


def show_headline(ranked: RankedEntry, name: str) -> BoardCell:
    figure = ranked.entry.headline.get(name)
    return BoardCell("") if figure is None else judge_cell(ranked, figure)


def show_depth(depth: int) -> Callable[[RankedEntry], BoardCell]:
    def show(ranked: RankedEntry) -> BoardCell:
        figure = ranked.entry.by_depth.get(depth)
        return BoardCell("") if figure is None else judge_cell(ranked, figure)

    return show


def judge_cell(ranked: RankedEntry, figure: Measured) -> BoardCell:
    """Shows a figure with the verdict on its target, if it has one."""
    verdict = next((row.verdict for row in ranked.targets if row.found == figure), None)
    return BoardCell(precise(figure.value), verdict, show_interval(figure))


def show_targets(ranked: RankedEntry) -> BoardCell:
    if not ranked.targets:
        return BoardCell("")
    met = sum(row.verdict is Verdict.PASSED for row in ranked.targets)
    missed = sum(row.verdict is Verdict.FAILED for row in ranked.targets)
    verdict = conclude((row.verdict for row in ranked.targets), needs_all=True)
    return BoardCell(f"{met} of {len(ranked.targets)} met", verdict, f"{missed} missed" if missed else "")


def show_published(engine: PublishedEngine, figure: str, depth: int) -> str:
    value: float | None = getattr(engine, figure).get(depth)
    return "" if value is None else precise(value)


def show_share(share: float | None) -> str:
    return "" if share is None else percent(share)


def show_slots(entry: BoardEntry) -> BoardCell:
    if entry.slots is None:
        return BoardCell("")
    return BoardCell(PATH_WORDS[entry.slots.verdict], entry.slots.verdict, entry.slots.in_words())


def show_drafts(entry: BoardEntry) -> BoardCell:
    drafts = entry.speculation
    if drafts is None:
        return BoardCell("")
    share = "drafts" if drafts.acceptance is None else f"{percent(drafts.acceptance)} accepted"
    counts = "" if drafts.drafted is None else f"{drafts.accepted} of {drafts.drafted}"
    words = (counts, drafts.positions_in_words(), drafts.length_in_words(), drafts.gain_in_words())
    return BoardCell(share, note=", ".join(filter(None, words)))


def show_answers(entry: BoardEntry) -> BoardCell:
    note = "no reference" if COHERENT_ONLY in entry.doubts else ""
    return BoardCell(ANSWERS[entry.coherent], entry.coherent, note)


def find_shared_variables(entries: Sequence[BoardEntry]) -> frozenset[tuple[str, str]]:
    """Returns the variables that have the same value in all entries."""
    if len(entries) < 2:
        return frozenset()
    return frozenset.intersection(*(frozenset(entry.environment.items()) for entry in entries))


def describe_settings(entry: BoardEntry, shared: frozenset[tuple[str, str]]) -> str:
    variables = [f"{name}={value}" for name, value in entry.environment.items() if (name, value) not in shared]
    return " ".join([*variables, *entry.settings])

"""Writes the board as one HTML page without network requests; a script sorts its tables."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from firesteel.lab.board.board import Board, BoardSection
from firesteel.lab.board.entry import RANKED_BY, Measured
from firesteel.lab.board.tables import (
    BoardCell,
    BoardTable,
    show_interval,
    tabulate_published,
    tabulate_section,
    tabulate_targets,
    tabulate_unranked,
)
from firesteel.lab.report.charts import ChartLine, ChartPoint, line_chart, line_of
from firesteel.lab.report.document import PLAIN, Cell, Chart, Document, Fold, Paragraph, Part, Section, Table
from firesteel.lab.report.headline import VERDICT_TONES
from firesteel.lab.report.html import to_html
from firesteel.lab.report.number_format import precise

FOLDER = Path(__file__).parent
MOST_LINES = 4  # configurations in a chart, beside the published engines
DAY_S = 86400.0


def write_board(board: Board, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_page(board, path.parent), encoding="utf-8")


def to_page(board: Board, folder: Path) -> str:
    """Returns the page; `folder` is that of its file, from which it links to the reports of runs."""
    style, script = ((FOLDER / name).read_text(encoding="utf-8") for name in ("board.css", "sort.js"))
    page = to_html(build_document(board, folder))
    return page.replace("</style>", f"{style}</style>", 1).replace("</body>", f"<script>{script}</script></body>")


def build_document(board: Board, folder: Path) -> Document:
    sections = [Section(section.title, _section(section, folder)) for section in board.sections]
    if board.unranked:
        note = Paragraph("invalid: the benchmark does not count; unproven: path or answers could not be judged")
        sections.append(Section("Not ranked", [note, _table(tabulate_unranked(board.unranked), folder)]))
    if board.unreadable:
        rows = list(map(list, board.unreadable.items()))
        sections.append(Section("Not readable", [Table(["file", "why"], rows)]))
    if board.without_speed:
        table = Table(["file"], [[path] for path in board.without_speed])
        title = f"{len(board.without_speed)} of runs without level 4 or of other verbs"
        sections.append(Section("Without a speed", [Fold(title, [table])]))
    return Document(
        title="firesteel lab board",
        verdict=board.in_words(),
        tone=VERDICT_TONES[board.verdict],
        lines=[f"best so far of {section.title}: {_best(section)}" for section in board.sections],
        sections=sections,
    )


def _best(section: BoardSection) -> str:
    entry = section.best.entry
    figure = entry.headline[RANKED_BY]
    return f"{precise(figure.value)} tok/s ({show_interval(figure)}) by {entry.name}"


def _section(section: BoardSection, folder: Path) -> Sequence[Part]:
    parts: list[Part] = [_table(tabulate_section(section), folder)]
    if section.best.targets:
        parts.append(_table(tabulate_targets(section.best.targets), folder))
    if section.published:
        parts += [
            Paragraph("Published figures of other engines"),
            _table(tabulate_published(section.published), folder),
        ]
    return parts + [chart for chart in (_by_depth(section), _over_time(section)) if chart is not None]


def _table(table: BoardTable, folder: Path) -> Table:
    rows = [[_cell(cell, folder) for cell in row] for row in table.rows]
    return Table(table.headings, rows, table.caption)


def _cell(cell: BoardCell, folder: Path) -> Cell:
    tone = PLAIN if cell.verdict is None else VERDICT_TONES[cell.verdict]
    link = os.path.relpath(cell.link, folder.resolve()) if cell.link else ""
    return Cell(cell.text, tone, note=cell.note, link=link)


def _by_depth(section: BoardSection) -> Chart | None:
    """Draws the best configurations, and the published engines dashed."""
    lines = [
        ChartLine(
            f"{ranked.rank}. {ranked.entry.engine}",
            [ChartPoint(depth, figure.value, find_ends(figure)) for depth, figure in ranked.entry.by_depth.items()],
        )
        for ranked in section.ranked[:MOST_LINES]
    ]
    lines += [line_of(engine.name, list(engine.tg_tok_s.items()), is_dashed=True) for engine in section.published]
    drawn = [line for line in lines if len(line.points) > 1]
    if not drawn:
        return None
    note = f"the best {MOST_LINES}; dashed: published" if len(section.ranked) > MOST_LINES else "dashed: published"
    drawing = line_chart(drawn, x_title="tokens of context", y_title="tok/s")
    return Chart("Generation by depth", drawing, note=note if section.published else "")


def find_ends(figure: Measured) -> tuple[float, float] | None:
    return None if figure.low is None or figure.high is None else (figure.low, figure.high)


def _over_time(section: BoardSection) -> Chart | None:
    """Draws every ranked run by its date, and the best so far."""
    times = [(parse_time(ranked.entry.time_utc), ranked.entry.speed) for ranked in section.ranked]
    dated = sorted((time, speed) for time, speed in times if time is not None)
    if len(dated) < 2 or dated[0][0] == dated[-1][0]:
        return None
    first = dated[0][0]
    days = [((time - first).total_seconds() / DAY_S, speed) for time, speed in dated]
    best = [(day, max(speed for earlier, speed in days if earlier <= day)) for day, _ in days]
    ticks = [days[-1][0] * part / 4 for part in range(5)]
    lines = [line_of("runs", days), line_of("best so far", best, is_dashed=True)]
    drawing = line_chart(lines, x_title=f"days since {first:%Y-%m-%d}", y_title="tok/s", ticks=ticks)
    return Chart("Best so far", drawing)


def parse_time(text: str | None) -> datetime | None:
    """Returns None if a file has no time, or something else in its place."""
    try:
        time = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)

"""The verb `lab board`: all results below some folders as a table, a page or JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from firesteel.cli.lab.run import lab
from firesteel.cli.options import AsJson, print_json
from firesteel.cli.tables import new_table, say, show
from firesteel.errors import UserError

if TYPE_CHECKING:
    from firesteel.lab.board.board import Board
    from firesteel.lab.board.tables import BoardCell, BoardTable


PAGE_ONLY = ("TTFT ms", "drafts", "doubts")  # columns for which a terminal has no room


@lab.command(name="board")
def lab_board(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR", help="folders with results, at any depth")],
    targets: Annotated[
        str, typer.Option(help="TOML file of targets by depth, or one that ships: spark.toml (default: none)")
    ] = "",
    out: Annotated[Path, typer.Option(help="page to write")] = Path("firesteel-board.html"),
    as_json: AsJson = False,
) -> None:
    """Show all results side by side: ranked by the speed of decoding if they are valid and proven.

    With --targets, the exit code is 1 if the best configuration misses one, and 3 if not all could be judged;
    without, it is 3 if nothing is ranked.
    """
    from firesteel.lab.board.board import make_board
    from firesteel.lab.board.page import write_board
    from firesteel.lab.board.targets import read_targets

    board = make_board(folders, read_targets(targets) if targets else None)
    if as_json:
        print_json(board.as_dict())
    else:
        show_board(board)
    try:
        write_board(board, out)
    except OSError as error:
        raise UserError(f"--out {out}: {error.strerror}; name a file that you may write") from error
    say(f"{board.in_words()}; page: {out}")
    raise typer.Exit(board.verdict.exit_code)


def show_board(board: Board) -> None:
    from firesteel.lab.board.tables import tabulate_section, tabulate_targets, tabulate_unranked

    for section in board.sections:
        show(to_rich(tabulate_section(section), section.title))
        if section.best.targets:
            show(to_rich(tabulate_targets(section.best.targets), "targets"))
    if board.unranked:
        show(to_rich(tabulate_unranked(board.unranked), "not ranked"))
    for path, why in board.unreadable.items():
        say(f"not readable: {path}: {why}")


def to_rich(table: BoardTable, title: str) -> Table:
    kept = [number for number, heading in enumerate(table.headings) if heading not in PAGE_ONLY]
    written = new_table(*(table.headings[number] for number in kept))
    written.title = title
    for row in table.rows:
        cells = [row[number] for number in kept]
        written.add_row(*map(to_text, cells))
    return written


def to_text(cell: BoardCell) -> Text:
    from firesteel.cli.lab.run_table import STYLES

    note = f"\n{cell.note}" if cell.note else ""
    return Text.assemble((cell.text, STYLES[cell.verdict] if cell.verdict else ""), (note, "dim"))

"""Tables of `bench decode`, and the columns that they share with steps through the engine; computes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from firesteel.cli.tables import new_table
from firesteel.measure.decode.figures import DecodeFigures
from firesteel.measure.loop.figures import LoopFigures

SPEED_COLUMNS = (
    "batch", "context", "ms a step", "ms a token", "tok/s", "MB a token", "floor ms", "of the floor",
    "experts a layer",
)  # fmt: skip


def speed_cells(one: DecodeFigures | LoopFigures) -> tuple[str, ...]:
    return (
        str(one.batch), str(one.context), f"{one.step_ms:.3f}", f"{one.step_ms / one.batch:.3f}",
        f"{one.tok_s:.1f}", f"{one.token_bytes / 1e6:.1f}", f"{one.floor_ms:.3f}", f"{100 * one.share:.1f} %",
        f"{one.experts.per_step:.1f}",
    )  # fmt: skip


def decode_table(found: Sequence[DecodeFigures], title: str) -> Table:
    table = new_table(*SPEED_COLUMNS, "distinct of all layers", "GB held")
    first = found[0]
    table.title = title
    table.caption = (
        f"{first.way}; medians of {len(first.samples_ms)} steps; floor: a step's bytes at {first.read_gb_s:.0f} "
        f"GB/s, read in the same run; all ways gave the same bits over {first.checked_steps} steps; experts: in a "
        f"step, and over {first.experts.num_tokens} tokens"
    )
    for one in found:
        table.add_row(*speed_cells(one), str(one.experts.total), f"{one.allocated_bytes / 1e9:.2f}")
    return table


def group_table(found: Sequence[DecodeFigures]) -> Table:
    groups = list(found[0].groups_ms)
    table = new_table("batch", "context", *(f"{group} us" for group in groups), "sum us", "step us")
    table.title = "time of each group in a step"
    table.caption = f"each by {found[0].groups_by}: what it fetches early, or finds in the cache, differs in a step"
    for one in found:
        times = [one.groups_ms[group] for group in groups]
        table.add_row(
            str(one.batch), str(one.context), *(f"{1e3 * time:.1f}" for time in (*times, sum(times), one.step_ms))
        )
    return table

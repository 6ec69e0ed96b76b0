"""Tables of `bench decode --engine`; computes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from firesteel.cli.bench.decode_tables import SPEED_COLUMNS, speed_cells
from firesteel.cli.bench.engine import in_words
from firesteel.cli.tables import new_table
from firesteel.measure.loop.figures import LoopFigures, Startup

STAGES = {
    "schedule": "scheduling", "build": "building", "run": "launching", "wait": "waiting", "read": "reading",
    "rest": "rest",
}  # fmt: skip


def loop_table(found: Sequence[LoopFigures], title: str, startup: Startup) -> Table:
    table = new_table(*SPEED_COLUMNS, "likeliest read again")
    first = found[0]
    table.title = title
    table.caption = (
        f"{first.way}; floor: a step's bytes, at the middle depth, at {first.read_gb_s:.0f} GB/s, read in the same "
        f"run; from weights on the device to the first token {startup.first_token_s:.1f} s, to the second "
        f"{startup.second_token_s:.1f} s{_caches(startup)}"
    )
    for one in found:
        table.add_row(*speed_cells(one), in_words(one.reread))
    return table


def stage_table(found: Sequence[LoopFigures]) -> Table:
    table = new_table(
        "batch", "context", "bare ms", "of bare replay", "GPU idle", *(f"{name} us" for name in STAGES.values()),
        "step us",
    )  # fmt: skip
    table.title = "what the engine adds to a step"
    table.caption = (
        "bare: replays of the same step and nothing else; idle: between the end of a step and the next one's "
        "beginning; the others are the host's time, which on a GPU passes beside the steps launched ahead: "
        "launching is all of the model on a CPU, reading is text and stop strings"
    )
    for one in found:
        times = [*(one.stages_ms[stage] for stage in STAGES), one.step_ms]
        table.add_row(
            str(one.batch), str(one.context), f"{one.bare_step_ms:.3f}", f"{100 * one.share_of_bare:.1f} %",
            f"{100 * one.times.idle_share:.2f} %", *(f"{1e3 * time:.1f}" for time in times),
        )  # fmt: skip
    return table


def _caches(startup: Startup) -> str:
    """In words, after a comma."""
    return "".join(
        f", {name} kernels' cache {use.state}" + (f" ({use.compiled} compiled)" if use.compiled else "")
        for name, use in startup.caches.items()
    )

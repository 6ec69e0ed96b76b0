"""Tables of `bench decode`, for bare steps and for steps through the engine."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from firesteel.cli.bench.rescored import in_words
from firesteel.cli.tables import new_table
from firesteel.measure.decode.figures import DecodeFigures
from firesteel.measure.loop.figures import LoopFigures, Startup

SPEED_COLUMNS = (
    "batch",
    "context",
    "ms per step",
    "ms per token",
    "tok/s",
    "MB per token",
    "floor ms",
    "of the floor",
    "experts per layer",
)
STAGE_COLUMNS = {  # title of each stage
    "schedule": "scheduling",
    "build": "building",
    "run": "launching",
    "wait": "waiting",
    "read": "reading",
    "rest": "rest",
}


def speed_cells(figures: DecodeFigures | LoopFigures) -> tuple[str, ...]:
    return (
        str(figures.batch),
        str(figures.context),
        f"{figures.step_ms:.3f}",
        f"{figures.step_ms / figures.batch:.3f}",
        f"{figures.tok_s:.1f}",
        f"{figures.token_bytes / 1e6:.1f}",
        f"{figures.floor_ms:.3f}",
        f"{100 * figures.share:.1f} %",
        f"{figures.experts.per_step:.1f}",
    )


def decode_table(measured: Sequence[DecodeFigures], title: str) -> Table:
    table = new_table(*SPEED_COLUMNS, "distinct of all layers", "GB held")
    first = measured[0]
    table.title = title
    table.caption = (
        f"{first.way}; medians of {len(first.samples_ms)} steps; floor: a step's bytes at {first.read_gb_s:.0f} "
        f"GB/s, measured in the same run; all variants gave the same bits over {first.checked_steps} steps; "
        f"experts: in a step, and over {first.experts.num_tokens} tokens"
    )
    for figures in measured:
        table.add_row(*speed_cells(figures), str(figures.experts.total), f"{figures.allocated_bytes / 1e9:.2f}")
    return table


def group_table(measured: Sequence[DecodeFigures]) -> Table:
    first = measured[0]
    groups = list(first.groups_ms)
    table = new_table("batch", "context", *(f"{group} us" for group in groups), "sum us", "step us")
    table.title = "time of each group in a step"
    table.caption = f"each by {first.groups_by}; inside a step, early fetches and cache hits differ"
    for figures in measured:
        times = [figures.groups_ms[group] for group in groups]
        cells = (f"{1e3 * time:.1f}" for time in (*times, sum(times), figures.step_ms))
        table.add_row(str(figures.batch), str(figures.context), *cells)
    return table


def loop_table(measured: Sequence[LoopFigures], title: str, startup: Startup) -> Table:
    table = new_table(*SPEED_COLUMNS, "most likely when rescored")
    first = measured[0]
    table.title = title
    table.caption = (
        f"{first.way}; floor: a step's bytes, at the middle depth, at {first.read_gb_s:.0f} GB/s, measured in "
        f"the same run; from weights on the device to the first token {startup.first_token_s:.1f} s, to the second "
        f"{startup.second_token_s:.1f} s{describe_caches(startup)}"
    )
    for figures in measured:
        table.add_row(*speed_cells(figures), in_words(figures.reread))
    return table


def stage_table(measured: Sequence[LoopFigures]) -> Table:
    stages = (f"{title} us" for title in STAGE_COLUMNS.values())
    table = new_table("batch", "context", "bare ms", "of bare replay", "GPU idle", *stages, "step us")
    table.title = "what the engine adds to a step"
    table.caption = (
        "bare: replays of the same step and nothing else; idle: between the end of a step and the next one's "
        "beginning; the others are host time, which on a GPU overlaps with the steps launched ahead: "
        "launching is all of the model on a CPU, reading is text and stop strings"
    )
    for figures in measured:
        times = [*(figures.stages_ms[stage] for stage in STAGE_COLUMNS), figures.step_ms]
        table.add_row(
            str(figures.batch),
            str(figures.context),
            f"{figures.bare_step_ms:.3f}",
            f"{100 * figures.share_of_bare:.1f} %",
            f"{100 * figures.times.idle_share:.2f} %",
            *(f"{1e3 * time:.1f}" for time in times),
        )
    return table


def describe_caches(startup: Startup) -> str:
    """Returns the state of each kernel cache, each after a comma."""
    return "".join(
        f", {name} kernels' cache {use.state}" + (f" ({use.compiled} compiled)" if use.compiled else "")
        for name, use in startup.caches.items()
    )

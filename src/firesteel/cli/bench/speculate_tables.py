"""Tables of `bench speculate`: cost of verifying steps, and speeds at given acceptances."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from firesteel.cli.tables import new_table
from firesteel.measure.speculate.figures import DraftGain, VerifyCase, VerifyCost


def place_cells(case: VerifyCase) -> tuple[str, str]:
    return str(case.requests), str(case.context)


def cost_table(costs: Sequence[VerifyCost], gains: Sequence[DraftGain], title: str) -> Table:
    table = new_table(
        "requests",
        "context",
        "rows each",
        "ms per step",
        "plain steps",
        "by roofline",
        "break-even acceptance",
        "step",
    )
    table.title = f"verifying tokens: {title}"
    table.caption = (
        f"medians of {len(costs[0].samples_ms)} steps; rows: the last drawn token and its drafts; rows hold random "
        "tokens, which share fewer experts than those of a text; roofline: bytes of independently routed tokens"
    )
    by_case = {gain.case: gain for gain in gains}
    for cost in costs:
        gain = by_case.get(cost.case)
        even = None if gain is None else gain.speculation.break_even()
        table.add_row(
            *place_cells(cost.case),
            str(cost.case.rows),
            f"{cost.step_ms:.3f}",
            "" if gain is None else f"{gain.cost:.2f}",
            "" if gain is None else f"{cost.predicted_cost:.2f}",
            "" if gain is None else "never" if even is None else f"{even:.1%}",
            cost.way,
        )
    return table


def speed_table(gains: Sequence[DraftGain]) -> Table:
    """Builds the table of speeds: a row per number of drafts, a column per acceptance."""
    acceptances = [speed.acceptance for speed in gains[0].speeds] if gains else []
    table = new_table("requests", "context", "drafted", *(f"at {acceptance:g}" for acceptance in acceptances))
    table.title = "tokens per second at an acceptance, with the tokens per step"
    drafting = gains[0].draft_ms if gains else 0.0
    table.caption = (
        "computed from the times above; acceptance: probability that a drafted token is accepted if the one before "
        f"it was; drafting takes {drafting:g} ms per token"
    )
    for gain in gains:
        table.add_row(
            *place_cells(gain.case),
            str(gain.case.drafted),
            *(
                Text(
                    f"{speed.tok_s:.0f} ({speed.length:.2f}, {speed.speedup:.2f} x)",
                    "green" if speed.speedup > 1 else "red",
                )
                for speed in gain.speeds
            ),
        )
    return table

"""`bench speculate --engine`: speed of the whole engine with drafts of a given acceptance, on random weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from firesteel.cli.bench.decode import choose_device
from firesteel.cli.bench.model import open_model
from firesteel.cli.bench.options import check_folder
from firesteel.cli.options import failing, print_json
from firesteel.cli.progress import progress_bar
from firesteel.cli.tables import new_table, say, show
from firesteel.config import resolve
from firesteel.engine.speculate.choice import LEAST_GAIN
from firesteel.errors import UserError
from firesteel.measure.speculate.runs import (
    ROUNDS,
    SimulatedSpeed,
    SimulatedSweep,
    check_room,
    measure_simulated,
    record,
)
from firesteel.measure.speculate.simulated import plant_order


def bench_simulated(
    settings: Mapping[str, Any], synthetic: str, sweep: SimulatedSweep, *, out: Path, as_json: bool
) -> None:
    drafts = {"speculate": "ngram", "num_speculative_tokens": sweep.most_drafted}
    for name in ("speculate", "draft_model", "num_speculative_tokens"):
        if name in settings and settings[name] != drafts.get(name):
            raise UserError(
                f"--{name.replace('_', '-')} {settings[name]}: --engine simulates the drafts, at most --rows "
                "less one: leave it out"
            )
    config = resolve({"prefix_caching": False, **settings, **drafts}).config
    device = choose_device(config, "bench speculate")
    check_folder(out)
    name, loaded = open_model(config, synthetic)
    check_room(sweep, loaded)
    plant_order(loaded.model.weights)
    speeds = []
    with failing(), progress_bar("measuring") as report_progress:
        for speed in measure_simulated(sweep, loaded, progress=report_progress):
            record(loaded, config, name, sweep, speed).save(out)
            speeds.append(speed)
    if as_json:
        print_json([speed.as_dict() for speed in speeds])
    else:
        show(simulated_table(speeds, f"{name} on {device.name}", adapts=config.speculate.adapt_speculation))
        show(choice_table(speeds))
    say(f"records are in {out}")


def simulated_table(speeds: Sequence[SimulatedSpeed], title: str, *, adapts: bool) -> Table:
    table = new_table(
        "requests",
        "context",
        "acceptance",
        "tok/s",
        "speed-up",
        "tokens per step",
        "drafted",
        "accepted",
        "saved s",
    )
    table.title = f"simulated drafts: {title}"
    chosen = "chosen by the engine" if adapts else "always as many as possible"
    table.caption = f"medians of {ROUNDS} rounds; number of drafts {chosen}; saved: the engine's own estimate"
    plain = {(speed.requests, speed.context): speed.tok_s for speed in speeds if speed.acceptance is None}
    for speed in speeds:
        gain = speed.tok_s / plain[speed.requests, speed.context]
        is_plain = speed.acceptance is None
        table.add_row(
            str(speed.requests),
            str(speed.context),
            "no drafts" if is_plain else f"{speed.acceptance:g}",
            f"{speed.tok_s:.1f}",
            "" if is_plain else Text(f"{gain:.2f} x", "green" if gain > 1 else "red"),
            f"{speed.length:.2f}",
            str(speed.drafted),
            str(speed.accepted),
            f"{speed.saved_s:.2f}",
        )
    return table


def choice_table(speeds: Sequence[SimulatedSpeed]) -> Table:
    """Builds the table of what the engine chose from: why it drafted, or did not."""
    table = new_table(
        "requests", "acceptance", "plain ms", "ms by rows each", "accepted", "gain expected", "choices"
    )
    table.title = "what the choices were made from, at the end of each case"
    table.caption = (
        "ms by rows: expected of a step that verifies 2, 3, ... rows of each request, the host's share included; "
        "accepted: learnt chance that 1, 2, ... drafted tokens are; gain: of drafting as many, against none; from "
        f"{LEAST_GAIN:g} on drafts are made"
    )
    for speed in speeds:
        if (told := speed.policy) is None:
            continue
        (accepted,), (gains,) = (list(told[name].values()) or [[]] for name in ("accepted_up_to", "expected_gain"))
        table.add_row(
            str(speed.requests),
            f"{speed.acceptance:g}",
            f"{told['plain_ms']:.2f}",
            ", ".join(f"{ms:.2f}" for rows, ms in told["verifying_ms"].items() if rows > 1),
            ", ".join(f"{chance:.2f}" for chance in accepted),
            ", ".join(f"{gain:.2f}" for gain in gains),
            ", ".join(f"{count} {reason}" for reason, count in told["choices"].items()),
        )
    return table

"""The verb `bench prefill`: milliseconds from a prompt to its first token, through the engine; knows no kernel.

Prompts are random tokens, all different, and nothing is cached, so every token is computed. One request at a time.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from firesteel.cli.app import with_knobs
from firesteel.cli.bench.decode import parse_numbers
from firesteel.cli.bench.engine import SEED, check_context, check_pages, find_context, open_model
from firesteel.cli.bench.ops import bench, check_folder
from firesteel.cli.options import AsJson, print_json
from firesteel.cli.progress import progress_bar
from firesteel.cli.tables import new_table, say, show
from firesteel.config import Config, resolve
from firesteel.engine.load import Loaded
from firesteel.errors import UserError
from firesteel.heap import settled_heap
from firesteel.measure.record import Record
from firesteel.measure.tokens.runs import draw_requests
from firesteel.model.spec import PRESETS
from firesteel.types import Request, SamplingParams

WARM_ROUNDS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillFigures:
    tokens: int
    samples_ms: tuple[float, ...]
    steps: int  # that a prompt took

    @property
    def milliseconds(self) -> float:
        return statistics.median(self.samples_ms)

    @property
    def tok_s(self) -> float:
        return 1e3 * self.tokens / self.milliseconds

    def as_dict(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "ms": self.milliseconds, "tok_s": self.tok_s, "steps": self.steps}


@bench.command(name="prefill")
@with_knobs
def bench_prefill(
    knobs: dict[str, Any],
    tokens: Annotated[str, typer.Option(help="of a prompt, as 2048,8192")] = "2048,8192",
    rounds: Annotated[int, typer.Option(min=1, help="timed prompts of each length")] = 10,
    synthetic: Annotated[str | None, typer.Option(help="random weights of " + " or ".join(PRESETS))] = None,
    out: Annotated[Path, typer.Option(help="folder for records")] = Path("firesteel-bench"),
    as_json: AsJson = False,
) -> None:
    """Time from a prompt's submission to its first token, one prompt at a time; no prefix caching."""
    lengths = parse_numbers("--tokens", tokens, 1, None)
    config = resolve({"prefix_caching": False, **knobs}).config
    check_context(find_context(config, synthetic), max(lengths) + 1)
    check_folder(out)
    name, loaded = open_model(config, synthetic)
    check_pages(loaded.engine, max(lengths))
    found = []
    with progress_bar("measuring") as report_progress:
        for number, length in enumerate(lengths, 1):
            found.append(measure(loaded, length, rounds))
            record(loaded, config, found[-1], name).save(out)
            report_progress(number, len(lengths))
    if as_json:
        print_json([one.as_dict() for one in found])
    else:
        show(prefill_table(found, f"prompts of {name} on {loaded.device.name}"))
    say(f"records are in {out}")


def measure(loaded: Loaded, length: int, rounds: int) -> PrefillFigures:
    """Some prompts first, untimed."""
    params = SamplingParams(max_tokens=1)
    drawn = draw_requests([length] * (WARM_ROUNDS + rounds), params, loaded.spec.vocab_size, seed=SEED + length)
    before = loaded.engine.totals.steps
    with settled_heap():
        samples = [time_one(loaded, request) for request in drawn]
    steps = (loaded.engine.totals.steps - before) // len(drawn)
    return PrefillFigures(tokens=length, samples_ms=tuple(samples[WARM_ROUNDS:]), steps=steps)


def time_one(loaded: Loaded, request: Request) -> float:
    start = time.perf_counter()
    loaded.engine.submit(request)
    outputs = []
    while loaded.engine.has_work:
        outputs += loaded.engine.step()
    milliseconds = 1e3 * (time.perf_counter() - start)
    if not outputs or outputs[-1].finish_reason != "length" or outputs[-1].num_cached:
        last = outputs[-1] if outputs else None
        raise UserError(f"a prompt of {request.num_prompt} tokens gave no first token of its own: {last}")
    return milliseconds


def record(loaded: Loaded, config: Config, figures: PrefillFigures, name: str) -> Record:
    """Samples are milliseconds, one a prompt."""
    return Record.now(
        loaded.device, config, name=f"engine prefill {figures.tokens}", unit="ms", samples=figures.samples_ms,
        warmups=WARM_ROUNDS, seed=SEED, kernels=loaded.kernels.table(), startup_s=loaded.report.seconds,
        parameters={"model": name, **figures.as_dict()},
    )  # fmt: skip


def prefill_table(found: list[PrefillFigures], title: str) -> Table:
    table = new_table("prompt tokens", "ms", "tok/s", "steps", "fastest ms", "slowest ms")
    table.title = title
    table.caption = f"medians of {len(found[0].samples_ms)} prompts, all different, from submission to first token"
    for one in found:
        table.add_row(
            str(one.tokens), f"{one.milliseconds:.2f}", f"{one.tok_s:.0f}", str(one.steps),
            f"{min(one.samples_ms):.2f}", f"{max(one.samples_ms):.2f}",
        )  # fmt: skip
    return table

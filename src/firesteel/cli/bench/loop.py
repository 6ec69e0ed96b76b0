"""`bench decode --engine`: decoding through the whole engine beside its floor and bare replays; knows no kernel.

Requests have distinct prompts of random tokens and are continued greedily, or by draws; each token is read as a
client would. All of it runs once untimed, and experts are counted on the way. A bare replay launches the same step
at the middle depth and nothing else. The ceiling is read after the first tokens, which it would otherwise hasten.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import typer

from firesteel.cli.app import show_error
from firesteel.cli.bench.engine import SEED, is_rounded, open_model
from firesteel.cli.bench.loop_run import Timed, run_watched
from firesteel.cli.bench.loop_tables import loop_table, stage_table
from firesteel.cli.options import print_json
from firesteel.cli.progress import progress_bar
from firesteel.cli.tables import say, show
from firesteel.config import Config
from firesteel.device import DeviceSpec
from firesteel.engine.engine import find_most_requests
from firesteel.engine.load import Loaded
from firesteel.errors import UserError
from firesteel.heap import settled_heap
from firesteel.measure.decode.experts import ExpertMeter, spread_points
from firesteel.measure.decode.kernel_caches import CacheWatch, find_caches
from firesteel.measure.decode.step_floor import kv_format
from firesteel.measure.decode.steps import ExpertCount, time_steps
from firesteel.measure.loop.figures import LoopFigures, Startup
from firesteel.measure.ops.memory import free_memory
from firesteel.measure.record import Record
from firesteel.measure.roofline.ceiling import read_ceiling
from firesteel.measure.roofline.roofline import Step, StepCost, step_cost
from firesteel.measure.tokens.rescore import read_again
from firesteel.measure.tokens.runs import draw_requests
from firesteel.plot import check_libraries, plot_decode
from firesteel.types import Request, SamplingParams

BARE_STEPS = 200
EXPERT_POINTS = 5  # of a run, at least, where experts are counted
EXPERT_TOKENS = 100  # whose experts are counted, at least
NEVER = "\x00 no text says this \x00"  # a stop string to be searched for


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopPlan:
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    tokens: int  # of each request
    temperature: float = 0.0

    def cases(self) -> list[tuple[int, int]]:
        return [(batch, context) for batch in self.batches for context in self.contexts]


def bench_loop(
    config: Config,
    device: DeviceSpec,
    synthetic: str | None,
    plan: LoopPlan,
    *,
    out: Path,
    plot: bool,
    as_json: bool,
) -> None:
    if max(plan.batches) > (most := find_most_requests(config.batch, device)):
        raise UserError(f"--batch {max(plan.batches)}: max_num_seqs = {most}: raise it")
    if plot:
        check_libraries()
    start = time.perf_counter()
    caches = CacheWatch(find_caches(device, config.kernels.kernel_cache_dir))
    name, loaded = open_model(config, synthetic)
    _check_room(loaded, max(plan.batches), max(plan.contexts), plan.tokens)
    opened_s = time.perf_counter() - start - loaded.report.seconds
    startup = measure_startup(loaded, opened_s, caches)
    say(f"measuring the read ceiling of {device.name}")
    read_gb_s = read_ceiling(device, lent=loaded.engine.runner.cache.keys[0]).rate
    free_memory(device)
    found: list[LoopFigures] = []
    with progress_bar("measuring") as report_progress:
        for batch, context in plan.cases():
            found.append(measure(loaded, batch, context, plan, read_gb_s))
            record(loaded, config, found[-1], name, startup).save(out)
            report_progress(len(found), len(plan.cases()))
    if as_json:
        print_json([{**one.as_dict(), "startup": startup.as_dict()} for one in found])
    else:
        show(loop_table(found, f"{name} on {device.name}, through the engine", startup))
        show(stage_table(found))
    say(f"records are in {out}")
    if plot:
        page, picture = plot_decode(found, out, f"decoding {name} on {device.name}", stem="engine-decode")
        say(f"plot: {page} and {picture}")
    _report_faults(found, loaded, config)


def measure_startup(loaded: Loaded, opened_s: float, caches: CacheWatch) -> Startup:
    """The first two tokens of a short prompt, whatever has to be compiled and captured for them."""
    engine, start, times = loaded.engine, time.perf_counter(), []
    engine.submit(_draw(loaded, 1, 64, 2)[0])
    while engine.has_work:
        if engine.step():
            times.append(opened_s + time.perf_counter() - start)
    return Startup(first_token_s=times[0], second_token_s=times[1], caches=caches.read())


def measure(loaded: Loaded, batch: int, context: int, plan: LoopPlan, read_gb_s: float) -> LoopFigures:
    """Tokens that were drawn are not the likeliest when read again."""
    engine, temperature = loaded.engine, plan.temperature
    requests = _draw(loaded, batch, context, plan.tokens, temperature)
    num_points = max(EXPERT_POINTS, -(-EXPERT_TOKENS // batch))
    meter = ExpertMeter(spread_points(plan.tokens - 1, num_points))  # the first token comes with the prompt
    run_watched(engine, requests, meter)
    for held in (context, context + plan.tokens):
        engine.loop.store.find(batch, held)
    timed = Timed(loaded, requests)
    with settled_heap():
        ready, begin = timed.run()
    with torch.inference_mode():
        bare = time_steps(ready.launch, lambda: ready.step.restore(begin), loaded.device, steps=BARE_STEPS)
    experts = meter.count(loaded.spec)
    return LoopFigures(
        context=context, temperature=temperature, num_tokens=timed.num_tokens, seconds=timed.seconds,
        stages_s=timed.stages_s, times=timed.marks.read(), bare_ms=bare, read_gb_s=read_gb_s, experts=experts,
        cost=find_cost(loaded, batch, context + plan.tokens // 2, experts),
        reread=None if temperature else read_again(engine, requests[:1], timed.made.tokens),
        is_captured=ready.is_captured,
    )  # fmt: skip


def find_cost(loaded: Loaded, batch: int, context: int, experts: ExpertCount) -> StepCost:
    """Of what a step must read."""
    step = Step(
        mxfp4_layers=loaded.spec.mxfp4_layers, kv=kv_format(loaded.engine.runner.cache), context=context,
        requests=batch, distinct_experts=experts.per_step,
    )  # fmt: skip
    return step_cost(loaded.spec, step)


def _draw(loaded: Loaded, batch: int, context: int, tokens: int, temperature: float = 0.0) -> list[Request]:
    """Stop tokens are checked and never met: the vocabulary ends before them. Each request has its own seed."""
    vocab_size = loaded.spec.vocab_size
    params = SamplingParams(max_tokens=tokens, stop=(NEVER,), temperature=temperature)
    drawn = draw_requests([context] * batch, params, vocab_size, seed=SEED)
    stops = frozenset((vocab_size, vocab_size + 1))
    return [
        replace(one, stops=stops, params=replace(one.params, seed=SEED + number))
        for number, one in enumerate(drawn)
    ]


def record(loaded: Loaded, config: Config, figures: LoopFigures, name: str, startup: Startup) -> Record:
    """Samples are milliseconds, from the end of a step to the end of the next."""
    return Record.now(
        loaded.device, config, name=f"engine decode batch {figures.batch} context {figures.context}", unit="ms",
        samples=figures.times.steps_ms, warmups=round(figures.num_steps), seed=SEED, kernels=loaded.table(),
        startup_s=loaded.report.seconds,
        parameters={
            "model": name, **figures.as_dict(), "startup": startup.as_dict(),
            "pages": loaded.engine.totals.pages, "run_ahead_steps": loaded.engine.run_ahead_steps,
        },
    )  # fmt: skip


def _report_faults(found: Sequence[LoopFigures], loaded: Loaded, config: Config) -> None:
    rounded = is_rounded(loaded, config)
    checked = [(one, one.reread.find_fault(is_rounded=rounded)) for one in found if one.reread is not None]
    faults = [(one, why) for one, why in checked if why is not None]
    for one, why in faults:
        show_error(f"with {one.batch} in flight the tokens are wrong: read again they are {why}")
    if faults:
        raise typer.Exit(1)


def _check_room(loaded: Loaded, batch: int, context: int, tokens: int) -> None:
    if context + tokens + 1 > loaded.max_context:
        raise UserError(
            f"{context} + {tokens} tokens a request and one more exceed the context of {loaded.max_context}: lower "
            "--context or --steps"
        )
    needed = batch * loaded.engine.scheduler.tables.layout.count_pages(context + tokens, chunk=context)
    if needed > loaded.engine.totals.pages:
        raise UserError(
            f"{batch} x {context + tokens} tokens need {needed} pages, the cache has "
            f"{loaded.engine.totals.pages}: raise --kv-cache-gib, or lower --batch, --context or --steps"
        )

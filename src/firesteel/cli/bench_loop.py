"""`bench decode --engine`: decoding through the whole engine beside bare replays of the same step; knows no kernel.

Requests have distinct prompts of random tokens and are continued greedily, or by draws; each token is checked
against stop tokens, turned into text and searched for stop strings, as a client's would be. Steps count from the
first that only decodes to the first end of a request. A bare replay launches the same step at the middle depth
and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
import typer
from rich.table import Table

from firesteel.chat.tokenizer import Tokenizer
from firesteel.cli.app import show_error
from firesteel.cli.bench_engine import SEED, in_words, is_rounded, open_model
from firesteel.cli.options import print_json
from firesteel.cli.progress import progress_bar
from firesteel.cli.tables import new_table, say, show
from firesteel.config import Config
from firesteel.engine.engine import Engine
from firesteel.engine.load import Loaded
from firesteel.engine.step_store import ReadyStep
from firesteel.errors import UserError
from firesteel.heap import settled_heap
from firesteel.hub import find_checkpoint
from firesteel.kernels.cuda_cache import current_cache
from firesteel.llm import Continuation
from firesteel.measure.decode import time_steps
from firesteel.measure.experts import count_step_experts
from firesteel.measure.loop_figures import LoopFigures, Startup
from firesteel.measure.record import Record
from firesteel.measure.rereading import read_again
from firesteel.measure.runs import Outputs, draw_requests
from firesteel.measure.step_marks import StepMarks
from firesteel.types import Request, SamplingParams, StepOutput

WARM_TOKENS = 8
BARE_STEPS = 200
EXPERT_STEPS = 16
NUM_WORDS = 4000  # of Kindling's vocabulary
NEVER = "\x00 no text says this \x00"  # a stop string to be searched for


def bench_loop(
    config: Config, synthetic: str | None, *, batches: Sequence[int], contexts: Sequence[int], tokens: int,
    temperature: float, out: Path, as_json: bool,
) -> None:  # fmt: skip
    if max(batches) > config.batch.max_num_seqs:
        raise UserError(f"--batch {max(batches)}: max_num_seqs = {config.batch.max_num_seqs}: raise it")
    made_before, start = _count_cubins(), time.perf_counter()
    name, loaded = open_model(config, synthetic)
    _check_room(loaded, max(batches), max(contexts), tokens)
    opened_s = time.perf_counter() - start - loaded.report.seconds
    startup = measure_startup(loaded, opened_s, made_before)
    cases = [(batch, context) for batch in batches for context in contexts]
    found = []
    with progress_bar("measuring") as report_progress:
        for number, (batch, context) in enumerate(cases, 1):
            found.append(measure(loaded, batch, context, tokens, temperature))
            record(loaded, config, found[-1], name, startup).save(out)
            report_progress(number, len(cases))
    if as_json:
        print_json([{**one.as_dict(), "startup": startup.as_dict()} for one in found])
    else:
        show(loop_table(found, f"{name} on {loaded.device.name}, through the engine", startup))
    say(f"records are in {out}")
    _report_faults(found, loaded, config)


def measure_startup(loaded: Loaded, opened_s: float, cubins_before: int) -> Startup:
    """The first two tokens of a short prompt, whatever has to be compiled and captured for them."""
    engine, start, times = loaded.engine, time.perf_counter(), []
    engine.submit(_draw(loaded, 1, 64, 2)[0])
    while engine.has_work:
        if engine.step():
            times.append(opened_s + time.perf_counter() - start)
    return Startup(
        first_token_s=times[0], second_token_s=times[1], cuda_kernels_compiled=_count_cubins() - cubins_before
    )


def measure(loaded: Loaded, batch: int, context: int, tokens: int, temperature: float = 0.0) -> LoopFigures:
    """Tokens that were drawn are not the likeliest when read again, and greedy steps soon leave their text."""
    engine, requests = loaded.engine, _draw(loaded, batch, context, tokens, temperature)
    run(engine, [replace(one, params=replace(one.params, max_tokens=WARM_TOKENS)) for one in requests])
    for held in (context, context + tokens):
        engine.loop.store.find(batch, held)
    timed = Timed(loaded, requests)
    with settled_heap():
        ready, begin = timed.run()
    with torch.inference_mode():
        bare = time_steps(ready.launch, lambda: ready.step.restore(begin), loaded.device, steps=BARE_STEPS)
        ready.step.restore(begin)
        experts = count_step_experts(ready.step, num_steps=1 if temperature else EXPERT_STEPS)
    return LoopFigures(
        batch=batch, context=context, temperature=temperature, num_tokens=timed.num_tokens, seconds=timed.seconds,
        times=timed.marks.read(), bare_ms=bare, experts=experts,
        reread=None if temperature else read_again(engine, requests[:1], timed.made.tokens),
        is_captured=ready.is_captured,
    )  # fmt: skip


class Timed:
    """One pass over requests that begin together."""

    def __init__(self, loaded: Loaded, requests: Sequence[Request]) -> None:
        self.engine, self.requests = loaded.engine, requests
        self.marks = StepMarks(loaded.device)
        self.made = Outputs()
        self.readers = {one.request_id: Reader(one) for one in requests}
        self.num_tokens, self.seconds = 0, 0.0

    def run(self) -> tuple[ReadyStep, list[torch.Tensor]]:
        """The step that was launched, and its inputs half way."""
        engine, batch = self.engine, len(self.requests)
        for request in self.requests:
            engine.submit(request)
        while len(self.made.tokens) < batch:
            self._step()
        loop = engine.loop
        loop.before, loop.after = self.marks.before, self.marks.after
        found: tuple[ReadyStep, list[torch.Tensor]] | None = None
        half, start = min(one.max_new for one in self.requests) // 2, time.perf_counter()
        while len(engine.scheduler.running) == batch:
            outputs = self._step()
            self.num_tokens += len(outputs)
            self.seconds = time.perf_counter() - start
            if found is None and self.num_tokens >= batch * half:
                found = loop.current, loop.current.step.copy()
        found = found or (loop.current, loop.current.step.copy())
        loop.before, loop.after = None, None
        while engine.has_work:
            self._step()
        self.made.check(self.requests)
        return found

    def _step(self) -> list[StepOutput]:
        outputs = self.engine.step()
        for output in outputs:
            self.readers[output.request_id].push(output)
        self.made.take(outputs)
        return outputs


class Reader:
    """What a client does with each token: text, and a search for stop strings. Kindling lends its words."""

    tokenizer: Tokenizer | None = None

    def __init__(self, request: Request) -> None:
        if Reader.tokenizer is None:
            Reader.tokenizer = Tokenizer.load(find_checkpoint("kindling"))
        self.continuation = Continuation(Reader.tokenizer, request)

    def push(self, output: StepOutput) -> None:
        self.continuation.push(replace(output, token_ids=[token % NUM_WORDS for token in output.token_ids]))


def run(engine: Engine, requests: Sequence[Request]) -> None:
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        engine.step()


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
        samples=figures.times.steps_ms, warmups=WARM_TOKENS, seed=SEED, kernels=loaded.table(),
        startup_s=loaded.report.seconds,
        parameters={
            "model": name, **figures.as_dict(), "startup": startup.as_dict(),
            "pages": loaded.engine.totals.pages, "run_ahead_steps": loaded.engine.run_ahead_steps,
        },
    )  # fmt: skip


def loop_table(found: Sequence[LoopFigures], title: str, startup: Startup) -> Table:
    table = new_table(
        "batch", "context", "tok/s", "ms a step", "bare ms", "of bare replay", "GPU idle", "experts a layer",
        "likeliest read again",
    )  # fmt: skip
    table.title = title
    table.caption = (
        f"idle: between the end of a step and the next one's beginning; from weights on the device to the first "
        f"token {startup.first_token_s:.1f} s, to the second {startup.second_token_s:.1f} s, with "
        f"{startup.cuda_kernels_compiled} CUDA kernels compiled"
    )
    for one in found:
        table.add_row(
            str(one.batch), str(one.context), f"{one.tok_s:.1f}", f"{one.step_ms:.3f}", f"{one.bare_step_ms:.3f}",
            f"{100 * one.share_of_bare:.1f} %", f"{100 * one.times.idle_share:.2f} %",
            f"{one.experts.per_step:.1f}", in_words(one.reread),
        )  # fmt: skip
    return table


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


def _count_cubins() -> int:
    folder = current_cache().folder
    return 0 if folder is None or not folder.is_dir() else len(list(folder.glob("*.cubin")))

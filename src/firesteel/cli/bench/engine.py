"""The verb `bench engine`: tokens a second with so many requests in flight, and where time goes; knows no kernel.

Prompts are random tokens, the same at each concurrency, and every one is continued to the full length.
A step that computes one token of each request decodes; any other is prefill, whatever it decodes besides.
Afterwards some of the texts are read again as prompts, alone: whether their tokens are the likeliest, or nearly,
says whether the timed ones were right. In float32 all are the likeliest; in bf16 some are as likely as another.
Gaps that rounding does not explain are an error, after the record is saved.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Table

from firesteel.cli.app import show_error, with_knobs
from firesteel.cli.bench.ops import bench
from firesteel.cli.options import AsJson
from firesteel.cli.progress import progress_bar
from firesteel.cli.tables import new_table, say, show
from firesteel.config import Config, resolve
from firesteel.device import find_device
from firesteel.engine.cache.kv_cache import find_dtype
from firesteel.engine.engine import Engine, find_most_requests
from firesteel.engine.load import Loaded, find_max_context, load_engine, synthetic_engine
from firesteel.engine.statistics import Statistics
from firesteel.errors import UserError
from firesteel.hub import find_checkpoint
from firesteel.measure.record import Record
from firesteel.measure.tokens.rescore import Reread, read_again
from firesteel.measure.tokens.runs import Outputs, draw_requests
from firesteel.model.spec import PRESETS, ModelSpec, read_spec
from firesteel.types import Request, SamplingParams, StepOutput

SEED = 0
WARM_TOKENS = 4  # of each request before the first round
STAGES = ("schedule", "build", "run", "wait")


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Rates of one pass over all requests, and seconds of each stage."""

    output_tok_s: float  # over the whole pass
    prefill_tok_s: float  # prompt tokens over the steps that compute some
    decode_tok_s: float  # new tokens of the steps that only decode
    first_token_s: float  # from submission, mean over requests
    token_s: float
    steps: int
    stages_s: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    concurrency: int
    rounds: tuple[Round, ...]
    reread: Reread | None  # None where no text was read again

    def median(self, name: str) -> float:
        return float(statistics.median(getattr(one, name) for one in self.rounds))

    def stage_ms(self, stage: str) -> float:
        """A step."""
        return statistics.median(1e3 * one.stages_s[stage] / one.steps for one in self.rounds)

    def as_dict(self) -> dict[str, Any]:
        names = ("output_tok_s", "prefill_tok_s", "decode_tok_s", "first_token_s", "token_s", "steps")
        return {
            "concurrency": self.concurrency,
            **{name: self.median(name) for name in names},
            **{f"{stage}_ms_a_step": self.stage_ms(stage) for stage in STAGES},
            "reread": None if self.reread is None else self.reread.as_dict(),
        }


@bench.command(name="engine")
@with_knobs
def bench_engine(
    knobs: dict[str, Any],
    concurrency: Annotated[str, typer.Option(help="requests in flight, as 1,16")] = "1,16",
    prompt_tokens: Annotated[int, typer.Option(min=2, help="of each request")] = 64,
    max_tokens: Annotated[int, typer.Option(min=2, help="of each request; all are generated")] = 64,
    requests: Annotated[int, typer.Option(min=1, help="in each round, whatever the concurrency")] = 32,
    rounds: Annotated[int, typer.Option(min=1, help="timed passes over the requests")] = 3,
    check: Annotated[
        int, typer.Option(min=0, help="texts read again as prompts, alone, to check their tokens")
    ] = 4,
    synthetic: Annotated[str | None, typer.Option(help="random weights of " + " or ".join(PRESETS))] = None,
    out: Annotated[Path, typer.Option(help="folder for records")] = Path("firesteel-bench"),
    as_json: AsJson = False,
) -> None:
    """Tokens a second of the engine, prefill and decode apart, and the time in each stage; no prefix caching."""
    levels = parse_concurrency(concurrency)
    config = resolve({"prefix_caching": False, "max_num_seqs": max(64, *levels), **knobs}).config
    check_seqs(config, max(levels))
    check_context(find_context(config, synthetic), prompt_tokens + max_tokens, is_read_again=check > 0)
    name, loaded = open_model(config, synthetic)
    check_pages(loaded.engine, prompt_tokens + max_tokens - (check == 0))
    params = SamplingParams(max_tokens=max_tokens)
    drawn = draw_requests([prompt_tokens] * requests, params, loaded.spec.vocab_size, seed=SEED)
    runs: list[Run] = []
    with progress_bar("measuring") as report_progress:
        for level in levels:
            runs.append(run_level(loaded.engine, drawn, level, rounds=rounds, num_checked=check))
            shape = {"model": name, "requests": requests, "prompt_tokens": prompt_tokens, "max_tokens": max_tokens}
            record(loaded, config, runs[-1], shape).save(out)
            report_progress(len(runs), len(levels))
    if as_json:
        print(json.dumps([run.as_dict() for run in runs], indent=2))
    else:
        title = f"{requests} requests of {prompt_tokens} + {max_tokens} tokens on {loaded.device.name}: {name}"
        show(engine_table(runs, title))
    say(f"records are in {out}")
    report_faults(runs, is_rounded=is_rounded(loaded, config))


def find_context(config: Config, synthetic: str | None) -> int:
    """Without reading weights."""
    spec = read_spec(find_checkpoint(config.model.model)) if synthetic is None else find_preset(synthetic)
    return find_max_context(spec, config)


def find_preset(name: str) -> ModelSpec:
    if name not in PRESETS:
        raise UserError(f"--synthetic {name}: must be one of {', '.join(PRESETS)}")
    return PRESETS[name]


def open_model(config: Config, synthetic: str | None) -> tuple[str, Loaded]:
    if synthetic is not None:
        return f"{synthetic}, random weights", synthetic_engine(find_preset(synthetic), config, seed=SEED)
    directory = find_checkpoint(config.model.model)
    with progress_bar("loading weights", in_bytes=True) as report_progress:
        return directory.name, load_engine(directory, config, progress=report_progress)


def run_level(
    engine: Engine, requests: Sequence[Request], concurrency: int, *, rounds: int, num_checked: int
) -> Run:
    """A short pass first, untimed."""
    measure(engine, [shortened(one) for one in requests[:concurrency]], concurrency)
    passes = [measure(engine, requests, concurrency) for _ in range(rounds)]
    reread = read_again(engine, requests[:num_checked], passes[-1][1].tokens) if num_checked else None
    return Run(concurrency=concurrency, rounds=tuple(one for one, _ in passes), reread=reread)


def measure(engine: Engine, requests: Sequence[Request], concurrency: int) -> tuple[Round, Outputs]:
    """One pass: a request that ends makes room for the next. Raises where one does not get all its tokens."""
    waiting, made = deque(requests), Outputs()
    before, pace, start = engine.statistics(), Pace(), time.perf_counter()
    while waiting or engine.has_work:
        while waiting and len(engine.scheduler.jobs) < concurrency:
            engine.submit(replace(waiting.popleft(), arrival=time.monotonic()))
        made.take(pace.step(engine))
    seconds = time.perf_counter() - start
    made.check(requests)
    prefill = sum(one.num_prompt for one in requests) / pace.prefill_s
    return summarise(before, engine.statistics(), seconds, prefill, pace.num_decoded / pace.decode_s), made


@dataclass(slots=True)
class Pace:
    prefill_s: float = 0.0
    decode_s: float = 0.0
    num_decoded: int = 0

    def step(self, engine: Engine) -> list[StepOutput]:
        tokens, spans, start = engine.totals.step_tokens, engine.totals.step_requests, time.perf_counter()
        outputs = engine.step()
        seconds = time.perf_counter() - start
        if engine.totals.step_tokens - tokens > engine.totals.step_requests - spans:
            self.prefill_s += seconds
        else:
            self.decode_s += seconds
            self.num_decoded += len(outputs)
        return outputs


def summarise(before: Statistics, after: Statistics, seconds: float, prefill: float, decode: float) -> Round:
    def since(name: str) -> float:
        return float(getattr(after, name) - getattr(before, name))

    finished = since("requests_finished")
    return Round(
        output_tok_s=since("output_tokens") / seconds, prefill_tok_s=prefill, decode_tok_s=decode,
        first_token_s=since("first_token_s") / finished, token_s=since("token_s") / finished,
        steps=int(since("steps")), stages_s={stage: since(f"{stage}_s") for stage in STAGES},
    )  # fmt: skip


def record(loaded: Loaded, config: Config, run: Run, shape: dict[str, Any]) -> Record:
    """Samples are output tokens a second, one a round."""
    return Record.now(
        loaded.device, config, name="engine", unit="tok/s",
        samples=[one.output_tok_s for one in run.rounds], warmups=min(run.concurrency, shape["requests"]),
        seed=SEED, kernels=loaded.table(), startup_s=loaded.report.seconds,
        parameters={**run.as_dict(), **shape, "pages": loaded.engine.totals.pages},
    )  # fmt: skip


def engine_table(runs: Sequence[Run], title: str) -> Table:
    table = new_table(
        "in flight", "tok/s", "prefill tok/s", "decode tok/s", "first token ms", "ms a token", "steps",
        "scheduler ms", "batch ms", "model ms", "sample and wait ms", "likeliest read again",
    )  # fmt: skip
    table.title = title
    table.caption = "medians over rounds; stages are a step's; waiting for a GPU is in the last"
    for run in runs:
        table.add_row(
            str(run.concurrency), f"{run.median('output_tok_s'):.1f}", f"{run.median('prefill_tok_s'):.1f}",
            f"{run.median('decode_tok_s'):.1f}", f"{1e3 * run.median('first_token_s'):.1f}",
            f"{1e3 * run.median('token_s'):.2f}", f"{run.median('steps'):.0f}",
            *(f"{run.stage_ms(stage):.3f}" for stage in STAGES), in_words(run.reread),
        )  # fmt: skip
    return table


def in_words(reread: Reread | None) -> str:
    if reread is None:
        return "not checked"
    return f"{100 * reread.likeliest_share:.1f} % of {len(reread.gaps)}, others within {max(reread.gaps):.2f} nats"


def is_rounded(loaded: Loaded, config: Config) -> bool:
    """Whether activations, keys or values are anything but float32."""
    stored = find_dtype(config.cache.kv_dtype, loaded.device)
    return {loaded.device.dtype, stored} != {torch.float32} or config.kernels.activation != "bf16"


def report_faults(runs: Sequence[Run], *, is_rounded: bool) -> None:
    """A line for each run of wrong tokens, and exit code 1."""
    found = [(run, run.reread.find_fault(is_rounded=is_rounded)) for run in runs if run.reread is not None]
    faults = [(run.concurrency, why) for run, why in found if why is not None]
    for concurrency, why in faults:
        show_error(f"with {concurrency} in flight the tokens are wrong: read again they are {why}")
    if faults:
        raise typer.Exit(1)


def check_seqs(config: Config, concurrency: int) -> None:
    most = find_most_requests(config.batch, find_device(config.model.device))
    if concurrency > most:
        raise UserError(f"--concurrency {concurrency}: max_num_seqs = {most}: raise it, or lower the concurrency")


def check_context(max_context: int, num_tokens: int, *, is_read_again: bool = False) -> None:
    """A text that is read again needs room for one token more, which follows it."""
    if num_tokens > max_context:
        raise UserError(
            f"{num_tokens} tokens a request exceed the context of {max_context}: lower --prompt-tokens or "
            "--max-tokens"
        )
    if is_read_again and num_tokens == max_context:
        raise UserError(
            f"{num_tokens} tokens a request fill the context of {max_context}, and reading them again takes one "
            "more: lower --prompt-tokens or --max-tokens, or leave the check out with --check 0"
        )


def check_pages(engine: Engine, num_tokens: int) -> None:
    """Of one request: its last token is stored only when read again."""
    needed, pages = engine.scheduler.tables.layout.count_pages(num_tokens), engine.totals.pages
    if needed > pages:
        raise UserError(
            f"{num_tokens} tokens a request need {needed} pages, the cache has {pages}: raise --kv-cache-gib, or "
            "lower --prompt-tokens or --max-tokens"
        )


def shortened(request: Request) -> Request:
    return replace(request, params=replace(request.params, max_tokens=min(WARM_TOKENS, request.max_new)))


def parse_concurrency(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if not word.isascii() or not word.isdigit() or int(word) < 1:
            raise UserError(f"--concurrency {text}: wants numbers from 1 on, as 1,16, not {word!r}")
    return list(dict.fromkeys(map(int, words)))

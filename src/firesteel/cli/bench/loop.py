"""`bench decode --engine`: decoding through the whole engine, beside its floor and bare replays.

Each token is decoded to text and searched for stop strings, as a server does. The ceiling is measured after the
first tokens, because measuring it earlier would warm the GPU up for them.
"""

from __future__ import annotations

import functools
import time
from dataclasses import replace
from pathlib import Path

from firesteel.chat.tokenizer import Tokenizer
from firesteel.cli.bench.decode_tables import loop_table, stage_table
from firesteel.cli.bench.model import open_model
from firesteel.cli.bench.rescored import report_wrong_tokens
from firesteel.cli.options import print_json
from firesteel.cli.progress import progress_bar
from firesteel.cli.tables import say, show
from firesteel.config import Config
from firesteel.device import DeviceSpec
from firesteel.engine.limits import find_most_requests
from firesteel.errors import UserError
from firesteel.hub import find_checkpoint
from firesteel.llm import Continuation
from firesteel.measure.decode.kernel_caches import CacheWatch, find_caches
from firesteel.measure.loop.bench import LoopSubject, LoopSweep, check_sweep, measure_all, measure_startup
from firesteel.measure.loop.figures import LoopFigures
from firesteel.measure.loop.run import ReadOutput
from firesteel.measure.ops.memory import free_memory
from firesteel.measure.roofline.ceiling import read_ceiling
from firesteel.measure.tokens.rescore import is_rounded
from firesteel.plot import check_libraries, plot_decode
from firesteel.types import Request, StepOutput

NUM_WORDS = 4000  # size of Kindling's vocabulary


def bench_loop(
    config: Config,
    device: DeviceSpec,
    synthetic: str | None,
    sweep: LoopSweep,
    *,
    out: Path,
    plot: bool,
    as_json: bool,
) -> None:
    if max(sweep.batches) > (most := find_most_requests(config.batch, device)):
        raise UserError(f"--batch {max(sweep.batches)}: max_num_seqs = {most}: raise it")
    if plot:
        check_libraries()
    subject = open_subject(config, device, synthetic, sweep)
    with progress_bar("measuring") as report_progress:
        measured = list(measure_all(sweep, subject, open_text_reader, out, progress=report_progress))
    show_figures(measured, subject, device, as_json=as_json)
    say(f"records are in {out}")
    if plot:
        page, picture = plot_decode(
            measured, out, f"decoding {subject.name} on {device.name}", stem="engine-decode"
        )
        say(f"plot: {page} and {picture}")
    checks = [(figures.batch, figures.reread) for figures in measured]
    report_wrong_tokens(checks, is_rounded=is_rounded(subject.loaded.device, config))


def open_subject(config: Config, device: DeviceSpec, synthetic: str | None, sweep: LoopSweep) -> LoopSubject:
    """Opens the model, times its first tokens, then measures the read ceiling."""
    start = time.perf_counter()
    caches = CacheWatch(find_caches(device, config.kernels.kernel_cache_dir))
    name, loaded = open_model(config, synthetic)
    check_sweep(sweep, loaded)
    opened_s = time.perf_counter() - start - loaded.report.seconds
    startup = measure_startup(loaded, opened_s, caches)
    say(f"measuring the read ceiling of {device.name}")
    read_gb_s = read_ceiling(device, lent=loaded.engine.runner.cache.keys[0]).rate
    free_memory(device)
    return LoopSubject(name=name, loaded=loaded, config=config, startup=startup, read_gb_s=read_gb_s)


def show_figures(measured: list[LoopFigures], subject: LoopSubject, device: DeviceSpec, *, as_json: bool) -> None:
    if as_json:
        print_json([{**figures.as_dict(), "startup": subject.startup.as_dict()} for figures in measured])
        return
    show(loop_table(measured, f"{subject.name} on {device.name}, through the engine", subject.startup))
    show(stage_table(measured))


def open_text_reader(request: Request) -> ReadOutput:
    """Returns a function that decodes outputs to text and searches it for stop strings.

    Any model is read with Kindling's vocabulary: token ids are taken modulo its size.
    """
    continuation = Continuation(_tokenizer(), request)

    def read(output: StepOutput) -> None:
        continuation.push(replace(output, token_ids=[token % NUM_WORDS for token in output.token_ids]))

    return read


@functools.cache
def _tokenizer() -> Tokenizer:
    return Tokenizer.load(find_checkpoint("kindling"))

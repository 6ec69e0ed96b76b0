"""The verb `bench decode`: whole decoding steps at stated depths, checked and timed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from firesteel.cli.app import show_error, with_settings
from firesteel.cli.bench.options import RECORDS, OutAndPlot, Synthetic, bench, check_folder, parse_numbers
from firesteel.cli.choices import FUSED_REQUESTS
from firesteel.cli.options import AsJson, failing, print_json
from firesteel.cli.progress import progress_bar
from firesteel.cli.tables import say, show
from firesteel.config import Config, resolve
from firesteel.errors import UserError
from firesteel.exit_code import ExitCode

if TYPE_CHECKING:
    from firesteel.device import DeviceSpec
    from firesteel.measure.decode.bench import DecodeSweep


CHECKED = 256  # steps in which variants are compared by default
REFERENCES = "--device cpu: the plain references run; their times say nothing of a GPU"


@bench.command(name="decode")
@with_settings
def bench_decode(
    settings: dict[str, Any],
    checkpoint: Annotated[str | None, typer.Argument(metavar="MODEL", help="the same as --model")] = None,
    synthetic: Synthetic = None,
    batch: Annotated[
        str, typer.Option(help=f"requests per step, one token each: 1 to {FUSED_REQUESTS}, more with --engine")
    ] = "1",
    context: Annotated[
        str, typer.Option(help="tokens that each request holds at first, for example 2048,8192")
    ] = "2048",
    steps: Annotated[int, typer.Option(min=1, help="timed steps per batch and context")] = 200,
    engine: Annotated[
        bool, typer.Option("--engine", help="through the whole engine, with stop checks and text, from prompts")
    ] = False,
    temperature: Annotated[
        float,
        typer.Option(min=0, help="with --engine: draw tokens, so that random weights do not repeat themselves"),
    ] = 0.0,
    check: Annotated[
        int | None,
        typer.Option(min=1, help=f"steps in which all variants must give the same bits (default: {CHECKED})"),
    ] = None,
    delays: Annotated[
        bool, typer.Option("--delays", help="compare once more, with random delays in the kernels")
    ] = False,
    out: OutAndPlot = RECORDS,
    plot: Annotated[bool, typer.Option(help="draw decode.html and decode.png; engine-decode with --engine")] = True,
    as_json: AsJson = False,
) -> None:
    """Time whole decoding steps, embedding to sampled token, and their groups; give the share of the floor."""
    from firesteel.cli.bench.loop import bench_loop
    from firesteel.measure.decode.bench import DecodeSweep
    from firesteel.measure.loop.bench import LoopSweep

    if checkpoint is not None and ("model" in settings or synthetic is not None):
        raise UserError(f"{checkpoint}: name the model once: as MODEL, with --model or with --synthetic")
    settings = {**settings, **({} if checkpoint is None else {"model": checkpoint})}
    if engine:
        refuse_checks(check, delays=delays)
        batches = parse_numbers("--batch", batch, 1, None)
        config = resolve({"prefix_caching": False, "max_num_seqs": max(64, *batches), **settings}).config
        device = choose_device(config, "bench decode")
        check_folder(out)
        contexts = parse_numbers("--context", context, 1, None)
        loop_sweep = LoopSweep(batches=batches, contexts=contexts, tokens=steps, temperature=temperature)
        bench_loop(config, device, synthetic, loop_sweep, out=out, plot=plot, as_json=as_json)
        return
    if temperature:
        raise UserError("--temperature: a bare step takes the most likely token: add --engine, or leave it out")
    sweep = DecodeSweep(
        batches=parse_numbers("--batch", batch, 1, FUSED_REQUESTS),
        contexts=parse_numbers("--context", context, 0, None),
        steps=steps,
        check=CHECKED if check is None else check,
        delays=delays,
    )
    bench_steps(resolve(settings).config, synthetic, sweep, out=out, plot=plot, as_json=as_json)


def bench_steps(
    config: Config, synthetic: str | None, sweep: DecodeSweep, *, out: Path, plot: bool, as_json: bool
) -> None:
    from firesteel.cli.bench.decode_tables import decode_table, group_table
    from firesteel.cli.bench.model import UNUSED_CACHE_GIB, open_model, with_cache
    from firesteel.measure.decode.bench import (
        DecodeSubject,
        FailedCase,
        check_depth,
        choose_decode_ops,
        measure_all,
        network_config,
    )
    from firesteel.measure.decode.figures import DecodeFigures
    from firesteel.measure.ops.memory import free_memory
    from firesteel.measure.roofline.ceiling import read_ceiling
    from firesteel.plot import check_libraries, plot_decode

    device = choose_device(config, "bench decode")
    if sweep.delays and not device.is_cuda:
        raise UserError("--delays: only CUDA kernels have delays, and the references run here: leave it out")
    if plot:
        check_libraries()
    check_folder(out)
    say(f"measuring the read ceiling of {device.name}")
    read_gb_s = read_ceiling(device).rate
    free_memory(device)
    name, loaded = open_model(with_cache(network_config(config), UNUSED_CACHE_GIB), synthetic)
    check_depth(sweep, loaded)
    with failing():
        ops = choose_decode_ops(loaded, config)
        subject = DecodeSubject(name=name, loaded=loaded, ops=ops, config=config, read_gb_s=read_gb_s)
        with progress_bar("measuring") as report_progress:
            cases = list(measure_all(sweep, subject, out, progress=report_progress))
    measured = [case for case in cases if isinstance(case, DecodeFigures)]
    failed = [case for case in cases if isinstance(case, FailedCase)]
    if as_json:
        print_json([case.as_dict() for case in cases])
    elif measured:
        show(decode_table(measured, f"{name} on {device.name}"))
        show(group_table(measured))
    say(f"records are in {out}")
    if plot and measured:
        page, picture = plot_decode(measured, out, f"decoding {name} on {device.name}")
        say(f"plot: {page} and {picture}")
    for case in failed:
        show_error(f"batch {case.batch} at {case.context} tokens was not measured: {case.why}")
    if failed:
        raise typer.Exit(ExitCode.FAILED)


def refuse_checks(check: int | None, *, delays: bool) -> None:
    """Raises if a comparison of variants is requested: the engine runs a step in one variant only."""
    for flag, is_given in (("--check", check is not None), ("--delays", delays)):
        if is_given:
            raise UserError(f"{flag}: variants of a step are compared without --engine: leave one of them out")


def choose_device(config: Config, verb: str) -> DeviceSpec:
    """Returns the device that `verb` measures; a CPU only if it is named."""
    import torch

    from firesteel.device import find_device

    if config.model.device == "auto" and not torch.cuda.is_available():
        raise UserError(
            f"{verb} times CUDA kernels and torch sees no GPU here: run it on a machine with an NVIDIA GPU "
            "(`firesteel doctor` says what this one has), or pass --device cpu to time the plain references"
        )
    device = find_device(config.model.device)
    device.use()
    if not device.is_cuda:
        say(REFERENCES)
    return device

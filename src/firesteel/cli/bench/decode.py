"""The verb `bench decode`: the whole decoding step at stated depths, checked and timed; knows no kernel.

Before anything is timed, every way to run the step (eager or as a graph, with dependent launch or without) must
give the same tokens, keys, values and logits, bit for bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from firesteel.cli.app import with_knobs
from firesteel.cli.bench.decode_tables import decode_table, group_table
from firesteel.cli.bench.engine import SEED, open_model
from firesteel.cli.bench.loop import LoopPlan, bench_loop
from firesteel.cli.bench.ops import bench, check_folder
from firesteel.cli.options import AsJson, exit_code_one, print_json
from firesteel.cli.progress import progress_bar
from firesteel.cli.tables import say, show
from firesteel.config import Config, resolve
from firesteel.device import GIB, DeviceSpec, available_bytes, find_device
from firesteel.engine.cache.kv_cache import find_dtype, new_cache, page_bytes
from firesteel.engine.load import Loaded
from firesteel.errors import UserError
from firesteel.kernels.op.requirement import parse_requirements
from firesteel.kernels.registry import parse_pins
from firesteel.measure.decode.experts import count_experts
from firesteel.measure.decode.figures import DecodeFigures, kv_format
from firesteel.measure.decode.steps import PASS_STEPS, fill_pages, first_batch, lay_out, time_steps
from firesteel.measure.decode.variants import compare_variants, list_variants, time_groups
from firesteel.measure.ops.memory import free_memory
from firesteel.measure.record import Record
from firesteel.measure.roofline.ceiling import read_ceiling
from firesteel.measure.roofline.roofline import StepShape, step_cost
from firesteel.model.decode import MOST_REQUESTS, DecodeStep
from firesteel.model.decode_ops import DecodeOps, split_choices
from firesteel.model.graphs import WARMUPS
from firesteel.model.spec import PRESETS
from firesteel.model.weights import weight_bytes
from firesteel.plot import check_libraries, plot_decode

LOADED_PAGES_GIB = 0.1  # of the engine that comes with a model, which is not used
CHECKED = 256  # steps that every way must give to the same bits
EXPERT_TOKENS = 100  # whose experts are counted
GROUP_STEPS = 60  # timed of each group
REFERENCES = "--device cpu: the plain references run; their times say nothing of a GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    steps: int  # timed
    check: int  # compared before
    delays: bool  # compared with them as well

    @property
    def room(self) -> int:
        """Tokens that a request gains at most before it starts again."""
        return max(self.check, PASS_STEPS, EXPERT_TOKENS, WARMUPS) + 1

    def cases(self) -> list[tuple[int, int]]:
        return list(itertools.product(self.batches, self.contexts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is measured, with which settings, against which ceiling."""

    name: str
    loaded: Loaded
    ops: DecodeOps
    config: Config
    read_gb_s: float


@bench.command(name="decode")
@with_knobs
def bench_decode(
    knobs: dict[str, Any],
    checkpoint: Annotated[str | None, typer.Argument(metavar="MODEL", help="the same as --model")] = None,
    synthetic: Annotated[str | None, typer.Option(help="random weights of " + " or ".join(PRESETS))] = None,
    batch: Annotated[
        str, typer.Option(help=f"requests, one token each a step: 1 to {MOST_REQUESTS}, more with --engine")
    ] = "1",
    context: Annotated[str, typer.Option(help="tokens that each request holds at first, as 2048,8192")] = "2048",
    steps: Annotated[int, typer.Option(min=1, help="timed at each batch and context")] = 200,
    engine: Annotated[
        bool, typer.Option("--engine", help="through the whole engine, with stop checks and text, from prompts")
    ] = False,
    temperature: Annotated[
        float,
        typer.Option(min=0, help="with --engine: draw tokens, so that random weights do not repeat themselves"),
    ] = 0.0,
    check: Annotated[
        int | None,
        typer.Option(min=1, help=f"steps that every way must give to the same bits: {CHECKED} unless given"),
    ] = None,
    delays: Annotated[
        bool, typer.Option("--delays", help="compare once more, by kernels that dawdle at random")
    ] = False,
    out: Annotated[Path, typer.Option(help="folder for records and the plot")] = Path("firesteel-bench"),
    plot: Annotated[bool, typer.Option(help="draw decode.html and decode.png; engine-decode with --engine")] = True,
    as_json: AsJson = False,
) -> None:
    """Time whole decoding steps, embedding to sampled token, and their groups; give the share of the floor."""
    if checkpoint is not None and ("model" in knobs or synthetic is not None):
        raise UserError(f"{checkpoint}: name the model once: as MODEL, with --model or with --synthetic")
    knobs = {**knobs, **({} if checkpoint is None else {"model": checkpoint})}
    if engine:
        refuse_checks(check, delays=delays)
        batches = parse_numbers("--batch", batch, 1, None)
        config = resolve({"prefix_caching": False, "max_num_seqs": max(64, *batches), **knobs}).config
        device = choose_device(config)
        check_folder(out)
        asked = LoopPlan(
            batches=batches, contexts=parse_numbers("--context", context, 1, None), tokens=steps,
            temperature=temperature,
        )  # fmt: skip
        bench_loop(config, device, synthetic, asked, out=out, plot=plot, as_json=as_json)
        return
    if temperature:
        raise UserError("--temperature: a bare step takes the likeliest token: add --engine, or leave it out")
    config = resolve(knobs).config
    plan = Plan(
        batches=parse_numbers("--batch", batch, 1, MOST_REQUESTS),
        contexts=parse_numbers("--context", context, 0, None), steps=steps,
        check=CHECKED if check is None else check, delays=delays,
    )  # fmt: skip
    device = choose_device(config)
    if delays and not device.is_cuda:
        raise UserError("--delays: only CUDA kernels can dawdle, and the references run here: leave it out")
    if plot:
        check_libraries()
    check_folder(out)
    say(f"measuring the read ceiling of {device.name}")
    read_gb_s = read_ceiling(device).rate
    free_memory(device)
    name, loaded = open_model(_for_network(config), synthetic)
    check_context(plan, loaded)
    with exit_code_one():
        ops = choose_ops(loaded, config)
        subject = Subject(name=name, loaded=loaded, ops=ops, config=config, read_gb_s=read_gb_s)
        found = list(measure_all(plan, subject, out))
    if as_json:
        print_json([one.as_dict() for one in found])
    else:
        show(decode_table(found, f"{name} on {device.name}"))
        show(group_table(found))
    say(f"records are in {out}")
    if plot:
        page, picture = plot_decode(found, out, f"decoding {name} on {device.name}")
        say(f"plot: {page} and {picture}")


def refuse_checks(check: int | None, *, delays: bool) -> None:
    """An engine has one way to run a step: there is nothing to compare."""
    for flag, is_given in (("--check", check is not None), ("--delays", delays)):
        if is_given:
            raise UserError(f"{flag}: ways to run a step are compared without --engine: leave one of them out")


def choose_device(config: Config) -> DeviceSpec:
    """A CPU only where it is asked for by name."""
    if config.model.device == "auto" and not torch.cuda.is_available():
        raise UserError(
            "bench decode times CUDA kernels and torch sees no GPU here: run it on a machine with an NVIDIA GPU "
            "(`firesteel doctor` says what this one has), or pass --device cpu to time the plain references"
        )
    device = find_device(config.model.device)
    device.use()
    if not device.is_cuda:
        say(REFERENCES)
    return device


def check_context(plan: Plan, loaded: Loaded) -> None:
    longest = max(plan.contexts) + plan.room
    if longest > loaded.max_context:
        raise UserError(
            f"--context {max(plan.contexts)}: with room for {plan.room} steps that is {longest} tokens, the model "
            f"reaches {loaded.max_context}: lower --context or --check"
        )


def choose_ops(loaded: Loaded, config: Config) -> DecodeOps:
    """References on a GPU only where they are pinned."""
    others, ours = split_choices(config.kernels.kernels)
    must, must_ours = split_choices(config.kernels.require)
    if others or must:
        raise UserError(
            f"{others or must}: this times a step of the decode ops alone; pass --engine, or name those"
        )
    pins, required = parse_pins(ours), parse_requirements(must_ours)
    ops = DecodeOps.choose(
        loaded.device, loaded.kernels.ledger, asked=pins, required=required, activation=config.kernels.activation,
        mxfp4_layers=loaded.spec.mxfp4_layers,
    )  # fmt: skip
    plain = [name for name, runs in ops.table() if runs == "reference" and name not in pins]
    if plain and loaded.device.is_cuda:
        raise UserError(
            f"{', '.join(plain)} would run as plain references: {loaded.device.name} has no kernel for them; pin "
            f"them with --kernels {plain[0]}=reference,... and pass --no-cuda-graphs to time those"
        )
    return ops


def measure_all(plan: Plan, subject: Subject, out: Path) -> Iterator[DecodeFigures]:
    """Each record is saved as soon as it is made."""
    with progress_bar("measuring") as report_progress:
        for number, (batch, context) in enumerate(plan.cases(), 1):
            figures = measure(plan, subject, batch, context)
            record(subject, figures).save(out)
            free_memory(subject.loaded.device)
            report_progress(number, len(plan.cases()))
            yield figures


@torch.inference_mode()
def measure(plan: Plan, subject: Subject, batch: int, context: int) -> DecodeFigures:
    step = open_step(plan, subject, batch, context)
    begin, device, spec = step.inputs.copy(), subject.loaded.device, subject.loaded.spec
    ways = list_variants(device, subject.config.kernels)
    compare_variants(step, ways, device, plan.check, delays=plan.delays)
    way = ways[-1]
    samples = time_steps(way.open(step, device), lambda: step.inputs.restore(begin), device, steps=plan.steps)
    step.inputs.restore(begin)
    groups = time_groups(step, way, device, steps=GROUP_STEPS)
    experts = count_experts(step, num_tokens=EXPERT_TOKENS)
    read = StepShape(
        mxfp4_layers=spec.mxfp4_layers, kv=kv_format(step.cache), context=context, requests=batch,
        distinct_experts=experts.per_step,
    )  # fmt: skip
    return DecodeFigures(
        model=subject.name, way=str(way), samples_ms=samples, groups_ms=groups,
        groups_by="a graph of its calls alone" if way.graph else "its calls alone, launched one by one",
        cost=step_cost(spec, read), read_gb_s=subject.read_gb_s, experts=experts, checked_steps=plan.check,
        checked_with_delays=plan.delays, allocated_bytes=allocated_bytes(subject.loaded, step),
    )  # fmt: skip


def open_step(plan: Plan, subject: Subject, batch: int, context: int) -> DecodeStep:
    """With random keys and values to the depth, in pages of its own."""
    loaded, config = subject.loaded, subject.config
    spec, size, contexts = loaded.spec, config.batch.page_size, [context] * batch
    window = max((one for one in spec.windows if one is not None), default=0)
    pages = lay_out(contexts, room=plan.room, page_size=size, window=window, seed=SEED)
    dtype = find_dtype(config.cache.kv_dtype, loaded.device)
    needed, free = pages.count * page_bytes(spec, size, dtype), available_bytes(loaded.device)
    if needed > free:
        raise UserError(
            f"keys and values of {batch} x {context} tokens take {needed / GIB:.1f} GiB, {free / GIB:.1f} GiB are "
            "free: lower --batch or --context"
        )
    cache = new_cache(spec, pages.count, size, loaded.device, dtype)
    step = DecodeStep(loaded.model, cache, subject.ops, num_requests=batch, num_pages=pages.width)
    fill_pages(cache, seed=SEED)
    first = torch.randint(spec.vocab_size, (batch,), generator=torch.Generator().manual_seed(SEED)).tolist()
    step.load(first_batch(first, contexts, pages, cache))
    return step


def allocated_bytes(loaded: Loaded, step: DecodeStep) -> int:
    """That torch holds on a GPU; weights and pages on a CPU."""
    if loaded.device.is_cuda:
        return torch.cuda.memory_allocated(loaded.device.torch_device)
    pages = {one.data_ptr(): one.nbytes for one in (*step.cache.keys, *step.cache.values)}
    return weight_bytes(loaded.spec) + sum(pages.values())


def record(subject: Subject, figures: DecodeFigures) -> Record:
    """Samples are milliseconds, one a step."""
    loaded = subject.loaded
    return Record.now(
        loaded.device, subject.config, name=f"decode batch {figures.batch} context {figures.context}", unit="ms",
        samples=figures.samples_ms, warmups=min(PASS_STEPS, len(figures.samples_ms)), seed=SEED,
        kernels=subject.ops.table(), startup_s=loaded.report.seconds, parameters=figures.as_dict(),
    )  # fmt: skip


def parse_numbers(flag: str, text: str, least: int, most: int | None) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if not (word.isascii() and word.isdigit()) or int(word) < least or (most is not None and int(word) > most):
            limits = f"from {least} on" if most is None else f"from {least} to {most}"
            raise UserError(f"{flag} {text}: wants numbers {limits}, joined by commas, not {word!r}")
    return tuple(dict.fromkeys(map(int, words)))


def _for_network(config: Config) -> Config:
    """Without choices of decode ops, which the network does not know, and with few pages."""
    pins, required = (split_choices(text)[0] for text in (config.kernels.kernels, config.kernels.require))
    kernels = replace(config.kernels, kernels=pins, require=required)
    return replace(config, kernels=kernels, cache=replace(config.cache, kv_cache_gib=LOADED_PAGES_GIB))

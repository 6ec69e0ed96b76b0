"""Whole decoding steps at stated depths: variants compared, then steps, groups and experts measured and recorded.

Before anything is timed, all variants of the step must give the same tokens, keys, values and logits, bit for bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from firesteel.config import Config
from firesteel.device import GIB, available_bytes
from firesteel.engine.cache.kv_cache import find_dtype, new_cache, page_bytes
from firesteel.engine.load import Loaded
from firesteel.errors import UserError
from firesteel.kernels.op.requirement import parse_requirements
from firesteel.kernels.registry import parse_pins
from firesteel.measure.decode.experts import count_experts
from firesteel.measure.decode.figures import DecodeFigures, kv_format
from firesteel.measure.decode.steps import PASS_STEPS, Pages, fill_pages, first_batch, lay_out, time_steps
from firesteel.measure.decode.variants import compare_variants, list_variants, time_groups
from firesteel.measure.ops.memory import free_memory
from firesteel.measure.record import Record
from firesteel.measure.roofline.roofline import StepShape, step_cost
from firesteel.measure.tokens.runs import SEED
from firesteel.model.decode import DecodeStep
from firesteel.model.decode_ops import DecodeOps, split_choices
from firesteel.model.graphs import WARMUPS
from firesteel.model.weights import weight_bytes
from firesteel.types import KvCache

EXPERT_TOKENS = 100  # tokens whose experts are counted
GROUP_STEPS = 60  # timed steps per group


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSweep:
    """Batch sizes and depths to measure, each with each."""

    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    steps: int  # timed per case
    check: int  # steps in which variants are compared
    delays: bool  # compare with random delays as well

    @property
    def room(self) -> int:
        """Most tokens that a request gains before its inputs are restored."""
        return max(self.check, PASS_STEPS, EXPERT_TOKENS, WARMUPS) + 1

    def cases(self) -> list[tuple[int, int]]:
        return list(itertools.product(self.batches, self.contexts))


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCase:
    """A batch at a depth that no kernel accepts, that does not fit into memory, or whose variants differ."""

    batch: int
    context: int
    why: str

    def as_dict(self) -> dict[str, Any]:
        return {"batch": self.batch, "context": self.context, "not_measured": self.why}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSubject:
    """The model to measure, its decode ops and settings, and the ceiling of the same run."""

    name: str
    loaded: Loaded
    ops: DecodeOps
    config: Config
    read_gb_s: float


def network_config(config: Config) -> Config:
    """Returns the settings without pins and requirements of decode ops, which only `choose_decode_ops` reads."""
    pins, required = (split_choices(text)[0] for text in (config.kernels.kernels, config.kernels.require))
    return replace(config, kernels=replace(config.kernels, kernels=pins, require=required))


def check_depth(sweep: DecodeSweep, loaded: Loaded) -> None:
    """Raises unless the context of the model has room for the deepest case."""
    longest = max(sweep.contexts) + sweep.room
    if longest > loaded.max_context:
        raise UserError(
            f"--context {max(sweep.contexts)}: with room for {sweep.room} steps it needs {longest} tokens, the "
            f"context of the model is {loaded.max_context}: lower --context or --check"
        )


def choose_decode_ops(loaded: Loaded, config: Config) -> DecodeOps:
    """Chooses implementations by the settings. On a GPU a reference runs only if it is pinned."""
    others, ours = split_choices(config.kernels.kernels)
    must, must_ours = split_choices(config.kernels.require)
    if others or must:
        raise UserError(
            f"{others or must}: only the decode ops run in a bare step: name one of those, or pass --engine"
        )
    pins, required = parse_pins(ours), parse_requirements(must_ours)
    ops = DecodeOps.choose(
        loaded.device,
        loaded.kernels.ledger,
        asked=pins,
        required=required,
        activation=config.kernels.activation,
        mxfp4_layers=loaded.spec.mxfp4_layers,
    )
    plain = [name for name, runs in ops.table() if runs == "reference" and name not in pins]
    if plain and loaded.device.is_cuda:
        raise UserError(
            f"{', '.join(plain)} would run as plain references: {loaded.device.name} has no kernel for them; pin "
            f"them with --kernels {plain[0]}=reference,... and pass --no-cuda-graphs to time those"
        )
    return ops


def measure_all(
    sweep: DecodeSweep, subject: DecodeSubject, out: Path, *, progress: Callable[[int, int], None]
) -> Iterator[DecodeFigures | FailedCase]:
    """Measures all cases and saves each record as soon as it is made; one that fails does not end the others."""
    cases = sweep.cases()
    for done, (batch, context) in enumerate(cases, start=1):
        try:
            figures: DecodeFigures | FailedCase = measure(sweep, subject, batch, context)
        except (UserError, torch.OutOfMemoryError) as error:
            if len(cases) == 1:
                raise
            figures = FailedCase(batch=batch, context=context, why=" ".join(str(error).split()))
        if isinstance(figures, DecodeFigures):
            record(subject, figures).save(out)
        free_memory(subject.loaded.device)
        progress(done, len(cases))
        yield figures


@torch.inference_mode()
def measure(sweep: DecodeSweep, subject: DecodeSubject, batch: int, context: int) -> DecodeFigures:
    """Compares the variants of one case, then times the last of them, which is the configured one."""
    step = open_step(sweep, subject, batch, context)
    begin, device, spec = step.inputs.copy(), subject.loaded.device, subject.loaded.spec
    variants = list_variants(device, subject.config.kernels)
    compare_variants(step, variants, device, sweep.check, delays=sweep.delays)
    variant = variants[-1]
    samples = time_steps(variant.open(step, device), lambda: step.inputs.restore(begin), device, steps=sweep.steps)
    step.inputs.restore(begin)
    groups = time_groups(step, variant, device, steps=GROUP_STEPS)
    experts = count_experts(step, num_tokens=EXPERT_TOKENS)
    shape = StepShape(
        mxfp4_layers=spec.mxfp4_layers,
        kv=kv_format(step.cache),
        context=context,
        requests=batch,
        distinct_experts=experts.per_step,
    )
    return DecodeFigures(
        model=subject.name,
        way=str(variant),
        samples_ms=samples,
        groups_ms=groups,
        groups_by="a graph of its calls alone" if variant.graph else "its calls alone, launched one by one",
        cost=step_cost(spec, shape),
        read_gb_s=subject.read_gb_s,
        experts=experts,
        checked_steps=sweep.check,
        checked_with_delays=sweep.delays,
        allocated_bytes=allocated_bytes(subject.loaded, step),
    )


def open_step(sweep: DecodeSweep, subject: DecodeSubject, batch: int, context: int) -> DecodeStep:
    """Builds a step with its own pages, filled with random keys and values up to `context`."""
    spec, contexts = subject.loaded.spec, [context] * batch
    pages, cache = open_pages(subject.loaded, subject.config, contexts, room=sweep.room)
    step = DecodeStep(subject.loaded.model, cache, subject.ops, num_requests=batch, num_pages=pages.width)
    first = torch.randint(spec.vocab_size, (batch,), generator=torch.Generator().manual_seed(SEED)).tolist()
    step.load(first_batch(first, contexts, pages, cache))
    return step


def open_pages(loaded: Loaded, config: Config, contexts: Sequence[int], *, room: int) -> tuple[Pages, KvCache]:
    """Returns pages of requests that hold `contexts` random keys and values and gain up to `room` more."""
    spec, size = loaded.spec, config.batch.page_size
    longest_window = max((window for window in spec.windows if window is not None), default=0)
    pages = lay_out(contexts, room=room, page_size=size, window=longest_window, seed=SEED)
    dtype = find_dtype(config.cache.kv_dtype, loaded.device)
    needed, free = pages.count * page_bytes(spec, size, dtype), available_bytes(loaded.device)
    if needed > free:
        raise UserError(
            f"keys and values of {len(contexts)} x {max(contexts)} tokens need {needed / GIB:.1f} GiB, "
            f"{free / GIB:.1f} GiB are free: measure fewer requests or a shorter --context"
        )
    cache = new_cache(spec, pages.count, size, loaded.device, dtype)
    fill_pages(cache, seed=SEED)
    return pages, cache


def allocated_bytes(loaded: Loaded, step: DecodeStep) -> int:
    """Returns the bytes that torch holds on a GPU; on a CPU those of weights and pages."""
    if loaded.device.is_cuda:
        return torch.cuda.memory_allocated(loaded.device.torch_device)
    pages = {tensor.data_ptr(): tensor.nbytes for tensor in (*step.cache.keys, *step.cache.values)}
    return weight_bytes(loaded.spec) + sum(pages.values())


def record(subject: DecodeSubject, figures: DecodeFigures) -> Record:
    """Builds the record; its samples are milliseconds, one per step."""
    loaded = subject.loaded
    return Record.now(
        loaded.device,
        subject.config,
        name=f"decode batch {figures.batch} context {figures.context}",
        unit="ms",
        samples=figures.samples_ms,
        warmups=min(PASS_STEPS, len(figures.samples_ms)),
        seed=SEED,
        kernels=subject.ops.table(),
        startup_s=loaded.report.seconds,
        parameters=figures.as_dict(),
    )

"""Measures the cost of verifying 1 to N rows of one request or of several, at given depths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from firesteel.config import Config
from firesteel.engine.load import Loaded
from firesteel.errors import UserError
from firesteel.measure.decode.bench import choose_decode_ops
from firesteel.measure.decode.figures import kv_format
from firesteel.measure.decode.steps import PASS_STEPS, time_steps
from firesteel.measure.ops.memory import free_memory
from firesteel.measure.record import Record
from firesteel.measure.roofline.curves import speculate
from firesteel.measure.roofline.roofline import StepShape
from firesteel.measure.speculate.figures import VerifyCase, VerifyCost, list_gains
from firesteel.measure.speculate.steps import ROOM, open_step
from firesteel.measure.tokens.runs import SEED
from firesteel.model.decode_ops import DecodeOps, split_choices
from firesteel.model.spec import ModelSpec
from firesteel.types import KvCache


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySweep:
    """Requests, rows and depths to measure, each with each."""

    requests: tuple[int, ...]
    most_rows: int  # per request; 1 to this number are measured
    contexts: tuple[int, ...]
    steps: int  # timed per case
    acceptances: tuple[float, ...]  # at which the speed is computed
    draft_ms: float  # milliseconds of drafting one token of every request

    def cases(self) -> list[VerifyCase]:
        return [
            VerifyCase(requests=requests, rows=rows, context=context)
            for context in self.contexts
            for requests in self.requests
            for rows in range(1, self.most_rows + 1)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmeasuredCase:
    """A step that no kernel accepts, or that does not fit into memory."""

    case: VerifyCase
    why: str

    def as_dict(self) -> dict[str, Any]:
        case = self.case
        return {"requests": case.requests, "rows": case.rows, "context": case.context, "not_measured": self.why}


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySubject:
    """The model to measure; without `ops` every step is the network's."""

    name: str
    loaded: Loaded
    ops: DecodeOps | None
    config: Config


def choose_ops(loaded: Loaded, config: Config) -> DecodeOps | None:
    """Chooses the ops of fused steps by the settings; None on a CPU, where the engine runs the network."""
    if loaded.device.is_cuda:
        return choose_decode_ops(loaded, config)
    if pins := ",".join(
        filter(None, (split_choices(text)[1] for text in (config.kernels.kernels, config.kernels.require)))
    ):
        raise UserError(f"{pins}: decode ops run on a GPU only, and on a CPU a step is the network's: leave it out")
    return None


def check_depth(sweep: VerifySweep, loaded: Loaded) -> None:
    """Raises unless the context of the model has room for the deepest case."""
    longest = max(sweep.contexts) + sweep.most_rows + ROOM
    if longest > loaded.max_context:
        raise UserError(
            f"--context {max(sweep.contexts)}: with room for {sweep.most_rows} rows and {ROOM} steps it needs "
            f"{longest} tokens, the context of the model is {loaded.max_context}: lower --context"
        )


def measure_all(
    sweep: VerifySweep, subject: VerifySubject, *, progress: Callable[[int, int], None]
) -> Iterator[VerifyCost | UnmeasuredCase]:
    """Measures all cases; one that fails does not end the others."""
    cases = sweep.cases()
    for done, case in enumerate(cases, start=1):
        try:
            measured: VerifyCost | UnmeasuredCase = measure(case, subject, sweep.steps)
        except (UserError, torch.OutOfMemoryError) as error:
            measured = UnmeasuredCase(case=case, why=" ".join(str(error).split()))
        free_memory(subject.loaded.device)
        progress(done, len(cases))
        yield measured


@torch.inference_mode()
def measure(case: VerifyCase, subject: VerifySubject, steps: int) -> VerifyCost:
    verifying = open_step(case, subject.loaded, subject.config, subject.ops)
    samples = time_steps(verifying.run, verifying.reset, subject.loaded.device, steps=steps)
    return VerifyCost(
        case=case,
        way=verifying.way,
        samples_ms=samples,
        predicted_cost=predict_cost(subject.loaded.spec, case, verifying.step.cache),
    )


def predict_cost(spec: ModelSpec, case: VerifyCase, cache: KvCache) -> float:
    """Returns the bytes of the step in plain steps, as `firesteel roofline` predicts its time."""
    if not case.drafted:
        return 1.0
    shape = StepShape(
        mxfp4_layers=spec.mxfp4_layers, kv=kv_format(cache), context=case.context, requests=case.requests
    )
    return speculate(spec, shape, case.drafted).cost


def save_records(sweep: VerifySweep, subject: VerifySubject, costs: list[VerifyCost], out: Path) -> None:
    """Saves a record per step; its samples are milliseconds, and its parameters say what drafts gain by it."""
    gains = {gain.case: gain.as_dict() for gain in list_gains(costs, sweep.acceptances, draft_ms=sweep.draft_ms)}
    loaded = subject.loaded
    for cost in costs:
        is_fused = subject.ops is not None and cost.way.startswith("fused")
        Record.now(
            loaded.device,
            subject.config,
            name=f"verify {cost.case.rows} rows of {cost.case.requests} at {cost.case.context}",
            unit="ms",
            samples=cost.samples_ms,
            warmups=min(PASS_STEPS, len(cost.samples_ms)),
            seed=SEED,
            kernels=subject.ops.table() if is_fused and subject.ops is not None else loaded.kernels.table(),
            startup_s=loaded.report.seconds,
            parameters={"model": subject.name, **cost.as_dict(), **gains.get(cost.case, {})},
        ).save(out)

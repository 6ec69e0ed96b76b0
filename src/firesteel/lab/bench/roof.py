"""The bytes that a benchmark's figures cost, and their share of the roofline.

Decoding is compared with the memory's floor, a prompt with the later of memory's and arithmetic's. A CPU is not in
the table of devices: its figures have bytes but no share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from firesteel.lab.bench.formats import DENSE, KV, LAYERS, MOE, shorten_format
from firesteel.lab.bench.plan import BenchWorkload
from firesteel.measure.roofline.roofline import GPUS, StepCost, StepShape, step_cost
from firesteel.model.spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Roof:
    """The ceilings of a device."""

    device: str  # as the driver or the table names it; "CPU"
    gb_s: float | None = None
    of: str = ""  # "measured read" or "nominal"
    tflop_s: float | None = None  # dense bf16 of the data sheet


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The sizes and formats of the model that a server holds."""

    spec: ModelSpec
    moe: str = "mxfp4"
    dense: str = "bf16"  # format of qkv, o and lm_head, except those that the spec has in MXFP4
    kv: str = "bf16"

    @classmethod
    def of(cls, spec: ModelSpec, formats: Mapping[str, str]) -> ServedModel:
        """Takes the formats that the engine holds, whichever setting chose them."""
        layers = tuple(word for word in formats.get(LAYERS, "").split(",") if word)
        return cls(
            spec=replace(spec, mxfp4_layers=layers),
            moe=formats.get(MOE, "mxfp4"),
            dense=formats.get(DENSE, "bf16"),
            kv=shorten_format(formats[KV]),
        )

    def step(self, workload: BenchWorkload, *, tokens: int, context: int) -> StepCost:
        step = StepShape(
            moe=self.moe,
            dense=self.dense,
            mxfp4_layers=self.spec.mxfp4_layers,
            kv=self.kv,
            context=context,
            tokens=tokens,
            requests=workload.concurrency,
        )
        return step_cost(self.spec, step)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoofShare:
    """A speed as a share of its ceiling."""

    bytes_a_token: float
    flops_a_token: float
    device: str
    of: str  # which ceiling; empty if none is known
    ceiling_tok_s: float | None
    share: float | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def find_roof(device: str) -> Roof:
    """Looks up a device by its driver's name: "NVIDIA H200" is h200 in the table."""
    words = device.lower().replace("rtx ", "").replace(" ", "")
    for name, gpu in GPUS.items():
        if name in words:
            of, gb_s = list(gpu.bandwidths().items())[-1]
            return Roof(device=device, gb_s=gb_s, of=of, tflop_s=gpu.bf16_tflop_s)
    return Roof(device=device)


def decode_share(served: ServedModel, workload: BenchWorkload, roof: Roof, tok_s: float) -> RoofShare:
    """Computes the share for a step in the middle of the answer."""
    cost = served.step(workload, tokens=1, context=workload.depth + workload.pp + workload.tg // 2)
    ceiling = None if roof.gb_s is None else cost.tok_s(roof.gb_s)
    return _share(cost.bytes, cost.flops, workload.concurrency, roof, roof.of, ceiling, tok_s)


def prompt_share(
    served: ServedModel, workload: BenchWorkload, roof: Roof, tok_s: float, *, is_cached: bool = False
) -> RoofShare:
    """Computes the share for all prompts in one pass. Only the last token of each reaches the lm_head."""
    new, context = (workload.pp, workload.depth) if is_cached else (workload.pp + workload.depth, 0)
    cost = served.step(workload, tokens=new, context=context)
    flops = sum(op.flops / (new if op.part == "lm_head" else 1) for op in cost.ops)
    tokens = workload.concurrency * new
    if roof.gb_s is None:
        return _share(cost.bytes, flops, tokens, roof, "", None, tok_s)
    memory_s = cost.seconds(roof.gb_s)
    compute_s = 0.0 if roof.tflop_s is None else flops / (roof.tflop_s * 1e12)
    of = "bf16 arithmetic of the data sheet" if compute_s > memory_s else roof.of
    return _share(cost.bytes, flops, tokens, roof, of, tokens / max(memory_s, compute_s), tok_s)


def _share(
    total_bytes: float, flops: float, tokens: int, roof: Roof, of: str, ceiling: float | None, tok_s: float
) -> RoofShare:
    return RoofShare(
        bytes_a_token=total_bytes / tokens,
        flops_a_token=flops / tokens,
        device=roof.device,
        of=of,
        ceiling_tok_s=ceiling,
        share=None if ceiling is None else tok_s / ceiling,
    )

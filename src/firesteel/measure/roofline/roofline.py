"""Bytes and arithmetic that one step needs, and the speed that the memory of a GPU allows.

A decoded token reads once every matrix it uses, the vectors beside them (biases, norms, sinks) and the keys and
values in the cache. Activations stay on the chip. The ceiling counts memory only: if arithmetic is slower than
reading, as in large batches, the true ceiling is lower.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from firesteel.device.catalogue import shorten_name
from firesteel.errors import UserError
from firesteel.model.spec import GROUP, ModelSpec

BF16 = 2  # bytes
# Bytes per row of `values` numbers. Q8_0 and MXFP4 have one scale per group of 32: 34 and 17 bytes per group.
ROW_BYTES: dict[str, Callable[[int], int]] = {
    "bf16": lambda values: BF16 * values,
    "q8_0": lambda values: 34 * -(-values // GROUP),
    "fp8": lambda values: values,
    "mxfp4": lambda values: 17 * -(-values // GROUP),
}
KV_BYTES = {"bf16": 2.0, "fp8": 1.0, "q8_0": 34 / GROUP, "fp32": 4.0}  # per value
NOT_RUN = "predicted, not yet run"


class RooflineError(UserError):
    """An impossible step, or a GPU that is not in the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """One pass over the network: each request adds `tokens` positions to the `context` it holds in the cache."""

    moe: str = "mxfp4"  # format of the experts
    dense: str = "bf16"  # format of qkv, o and lm_head; the router is bf16
    mxfp4_layers: tuple[str, ...] = ()  # layers among qkv, o and lm_head that are MXFP4 instead
    kv: str = "bf16"
    context: int = 0
    requests: int = 1
    tokens: int = 1  # per request: 1 decodes, more verify a draft
    distinct_experts: float | None = None  # read per layer; None assumes independent routing

    def __post_init__(self) -> None:
        for name in ("moe", "dense"):
            if getattr(self, name) not in ROW_BYTES:
                raise RooflineError(f"{name} = {getattr(self, name)}: must be one of {', '.join(ROW_BYTES)}")
        if self.kv not in KV_BYTES:
            raise RooflineError(f"kv = {self.kv}: must be one of {', '.join(KV_BYTES)}")
        for name, least in (("context", 0), ("requests", 1), ("tokens", 1)):
            if getattr(self, name) < least:
                raise RooflineError(f"{name} = {getattr(self, name)}: must be at least {least}")

    @property
    def all_tokens(self) -> int:
        return self.requests * self.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCost:
    """Cost of all calls of one op in a step."""

    op: str  # as in firesteel.kernels, or "embedding"
    part: str  # which of the op's uses
    calls: int
    matrix_bytes: float = 0.0
    vector_bytes: float = 0.0  # biases, norms, sinks, rows of tables
    kv_bytes: float = 0.0
    flops: float = 0.0  # of matrix products; the rest is below one per cent

    @property
    def bytes(self) -> float:
        return self.matrix_bytes + self.vector_bytes + self.kv_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    step: StepShape
    distinct_experts: float  # per layer
    ops: tuple[OpCost, ...]

    @property
    def bytes(self) -> float:
        return sum(op.bytes for op in self.ops)

    @property
    def flops(self) -> float:
        return sum(op.flops for op in self.ops)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "bytes": self.bytes, "flops": self.flops}

    def seconds(self, gb_s: float) -> float:
        """Returns the shortest time of a step at a bandwidth."""
        return self.bytes / (gb_s * 1e9)

    def tok_s(self, gb_s: float, share: float = 1.0) -> float:
        """Returns the rate of all requests together, one token per step each, at a share of the bandwidth."""
        return share * self.step.requests / self.seconds(gb_s)

    def share(self, tok_s: float, gb_s: float) -> float:
        """Returns the share of a bandwidth that a speed uses."""
        return tok_s / self.tok_s(gb_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    title: str
    capability: tuple[int, int]
    nominal_gb_s: float
    read_gb_s: float | None = None  # measured by a streaming read
    read_by: str = ""  # source of that measurement
    has_run: bool = False  # true if firesteel has run on this GPU
    bf16_tflop_s: float | None = None  # data sheet, dense, accumulated in fp32; None if not stated

    def bandwidths(self) -> dict[str, float]:
        measured = {} if self.read_gb_s is None else {"measured read": self.read_gb_s}
        return {"nominal": self.nominal_gb_s, **measured}


GPUS = {
    "gb10": Gpu(
        title="GB10 (DGX Spark)", capability=(12, 1), nominal_gb_s=273, read_gb_s=232,
        read_by="antirez/ds4 #773: 231-234",
    ),
    "h100": Gpu(title="H100 SXM", capability=(9, 0), nominal_gb_s=3350, bf16_tflop_s=989),
    "h200": Gpu(
        title="H200 SXM", capability=(9, 0), nominal_gb_s=4800, read_gb_s=4645, read_by="firesteel, 2026-11-15",
        has_run=True, bf16_tflop_s=989,
    ),
    "b200": Gpu(title="B200", capability=(10, 0), nominal_gb_s=8000, bf16_tflop_s=2250),
    "5090": Gpu(title="RTX 5090", capability=(12, 0), nominal_gb_s=1792, bf16_tflop_s=209.5),
    "pro6000": Gpu(title="RTX PRO 6000 Blackwell", capability=(12, 0), nominal_gb_s=1792, bf16_tflop_s=503.8),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    bandwidth: str  # "nominal" or "measured read"
    gb_s: float
    step_ms: float  # at the ceiling
    ceiling_tok_s: float
    share: float
    predicted_tok_s: float  # at that share of the ceiling
    status: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def find_gpu(name: str) -> Gpu:
    gpu = GPUS.get(shorten_name(name))
    if gpu is None:
        raise RooflineError(f"there is no GPU {name!r} in the table; it has {', '.join(GPUS)}")
    return gpu


def expected_experts(spec: ModelSpec, tokens: int) -> float:
    """Returns the expected distinct experts per layer if `tokens` tokens choose independently of each other."""
    return spec.num_experts * (1 - (1 - spec.num_active / spec.num_experts) ** tokens)


def step_cost(spec: ModelSpec, step: StepShape) -> StepCost:
    experts, (least, most) = step.distinct_experts, (spec.num_active, spec.num_experts)
    if experts is None:
        experts = expected_experts(spec, step.all_tokens)
    elif not least <= experts <= most:
        raise RooflineError(f"distinct_experts = {experts}: must lie between {least} and {most}")
    ops = (
        *_token_ops(spec, step),
        *_attention_ops(spec, step),
        *_expert_ops(spec, step, experts),
        _linear("lm_head", 1, spec.vocab_size, spec.hidden_size, step, bias=False),
    )
    return StepCost(step=step, distinct_experts=experts, ops=ops)


def compare_dense(spec: ModelSpec, step: StepShape) -> dict[str, StepCost]:
    """Returns the cost of the step with qkv, o and lm_head in each format."""
    return {dense: step_cost(spec, replace(step, dense=dense)) for dense in ROW_BYTES}


def predict(cost: StepCost, gpu: Gpu, share: float) -> list[Prediction]:
    """Returns a prediction for each known bandwidth of the GPU."""
    if not 0 < share <= 1:
        raise RooflineError(f"share = {share}: must be above 0 and at most 1")
    return [
        Prediction(
            bandwidth=name,
            gb_s=gb_s,
            step_ms=cost.seconds(gb_s) * 1e3,
            ceiling_tok_s=cost.tok_s(gb_s),
            share=share,
            predicted_tok_s=cost.tok_s(gb_s, share),
            status="predicted" if gpu.has_run else NOT_RUN,
        )
        for name, gb_s in gpu.bandwidths().items()
    ]


def assumptions(cost: StepCost, gpu: Gpu, share: float) -> list[str]:
    """Returns the assumptions of the predictions, one line each."""
    counted = "given" if cost.step.distinct_experts is not None else "as expected from independent routing"
    lines = [
        "each matrix that a step uses is read once, and activations stay on the chip",
        f"{cost.distinct_experts:.1f} distinct experts per layer, {counted}",
        f"reading never stops for longer than {100 * (1 - share):.0f} % of the step: launches, waits between "
        "kernels and arithmetic together",
    ]
    if gpu.read_gb_s is not None:
        lines.append(f"measured read: by {gpu.read_by}")
    if not gpu.has_run:
        lines.append(f"firesteel has not yet run on {gpu.title}: its share is assumed, not measured")
    return lines


def _linear(part: str, calls: int, rows: int, columns: int, step: StepShape, *, bias: bool = True) -> OpCost:
    format = "mxfp4" if part in step.mxfp4_layers else step.dense
    return OpCost(
        op="linear",
        part=part,
        calls=calls,
        matrix_bytes=calls * rows * ROW_BYTES[format](columns),
        vector_bytes=calls * rows * BF16 * bias,
        flops=2.0 * calls * rows * columns * step.all_tokens,
    )


def _token_ops(spec: ModelSpec, step: StepShape) -> tuple[OpCost, ...]:
    norms = 2 * spec.num_layers + 1
    return (
        OpCost(op="embedding", part="rows", calls=1, vector_bytes=step.all_tokens * spec.hidden_size * BF16),
        OpCost(op="rms_norm", part="all", calls=norms, vector_bytes=norms * spec.hidden_size * BF16),
    )


def _attention_ops(spec: ModelSpec, step: StepShape) -> tuple[OpCost, ...]:
    """The cache is read once per request, however many tokens attend to it; a window ends at its token."""
    layers = spec.num_layers
    token_bytes = 2 * spec.kv_size * KV_BYTES[step.kv]  # key and value of one token in one layer
    held = sum(step.context if window is None else min(window - 1, step.context) for window in spec.windows)
    depths = range(step.context + 1, step.context + step.tokens + 1)
    seen = sum(depth if window is None else min(window, depth) for window in spec.windows for depth in depths)
    return (
        _linear("qkv", layers, spec.q_size + 2 * spec.kv_size, spec.hidden_size, step),
        OpCost(op="rope_kv_write", part="all", calls=layers, kv_bytes=step.all_tokens * layers * token_bytes),
        OpCost(
            op="attention",
            part="all",
            calls=layers,
            vector_bytes=layers * spec.num_heads * BF16,
            kv_bytes=step.requests * held * token_bytes,
            flops=4.0 * step.requests * seen * spec.q_size,
        ),
        _linear("o", layers, spec.hidden_size, spec.q_size, step),
    )


def _expert_ops(spec: ModelSpec, step: StepShape, experts: float) -> tuple[OpCost, ...]:
    layers, hidden, inter = spec.num_layers, spec.hidden_size, spec.intermediate_size
    row_bytes = ROW_BYTES[step.moe]

    def matmul(part: str, rows: int, columns: int) -> OpCost:
        return OpCost(
            op="moe_matmul",
            part=part,
            calls=layers,
            matrix_bytes=layers * experts * rows * row_bytes(columns),
            vector_bytes=layers * experts * rows * BF16,
            flops=2.0 * layers * spec.num_active * rows * columns * step.all_tokens,
        )

    router = OpCost(
        op="route",
        part="all",
        calls=layers,
        matrix_bytes=layers * spec.num_experts * hidden * BF16,
        vector_bytes=layers * spec.num_experts * BF16,
        flops=2.0 * layers * spec.num_experts * hidden * step.all_tokens,
    )
    return router, matmul("gate_up", 2 * inter, hidden), matmul("down", hidden, inter)

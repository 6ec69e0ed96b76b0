"""Predicted speed of prompts: each op takes the longer of its memory traffic and its matrix products.

Unlike a decoded token, a prompt writes its activations to memory and reads them again: at 8192 tokens that is as
much traffic as the weights. Every expert is read in every step from about 100 tokens on, so short prompts are bound
by memory and long ones by the matrix rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from firesteel.measure.roofline.roofline import (
    BF16,
    GPUS,
    NOT_RUN,
    OpCost,
    RooflineError,
    StepShape,
    find_gpu,
    step_cost,
)
from firesteel.model.spec import ModelSpec

LENGTHS = (512, 2048, 8192)  # with published figures for GB10
STEP_TOKENS = 8192  # most tokens of one step; a longer prompt reads the weights once per step
MEMORY_SHARE = 0.85  # of the read bandwidth
# Share of the matrix rate: with it, the prompts of 2048 and 8192 tokens measured on the H200 (61.5 and 192 ms on
# the GPU, 2026-11-17) are predicted within 20 %, one too fast and one too slow.
MATRIX_SHARE = 0.4
ON_MATRIX_CORES = (
    "qkv",
    "o",
    "gate_up",
    "down",
)  # parts that MXFP8 activations speed up if their weights are MXFP4


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixRates:
    """Dense rates in TFLOP/s, accumulated in fp32."""

    bf16: float
    mxfp8: float | None  # None if unknown, or without an instruction that multiplies scaled groups
    source: str

    def activations(self) -> tuple[str, ...]:
        return ("bf16",) if self.mxfp8 is None else ("mxfp8", "bf16")


# NVIDIA states only 1 PFLOP/s of FP4 with sparsity for GB10.
GB10_RATES = MatrixRates(
    bf16=125,
    mxfp8=250,
    source="1 PFLOP/s of sparse FP4 stated by NVIDIA, so 500 TFLOP/s dense, 250 in FP8 and 125 in bf16 are assumed"
    "; others measured 188 in FP8 (NVIDIA developer forum, thread 359960)",
)


@dataclass(frozen=True, slots=True)
class PublishedPrompts:
    tok_s: dict[int, float]  # by tokens of the prompt
    source: str


PUBLISHED = {  # by title of the GPU, and model
    (GPUS["gb10"].title, "gpt-oss-120b"): PublishedPrompts(
        {512: 1854, 2048: 4573, 8192: 6628}, "christopherowen/spark-vllm-mxfp4-docker, README"
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPrediction:
    tokens: int
    activation: str
    memory_ms: float  # all traffic at the assumed share of the bandwidth
    matrix_ms: float  # all products at the assumed share of the rate
    predicted_ms: float  # per op the longer of both
    predicted_tok_s: float
    ceiling_tok_s: float  # with both shares 1
    published_tok_s: float | None  # of another engine
    status: str

    @property
    def bound(self) -> str:
        return "memory" if self.memory_ms >= self.matrix_ms else "matrix"

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "bound": self.bound}


def find_rates(name: str) -> MatrixRates | None:
    """Returns the matrix rates of a GPU in the table, None if they are unknown."""
    gpu = find_gpu(name)
    if gpu is GPUS["gb10"]:
        return GB10_RATES
    rate = gpu.bf16_tflop_s
    return None if rate is None else MatrixRates(bf16=rate, mxfp8=None, source="data sheet, bf16")


def predict_prompts(
    spec: ModelSpec,
    step: StepShape,
    gpu: str,
    *,
    model: str = "",
    lengths: Sequence[int] = LENGTHS,
    step_tokens: int = STEP_TOKENS,
    memory_share: float = MEMORY_SHARE,
    matrix_share: float = MATRIX_SHARE,
) -> list[PromptPrediction]:
    """Returns a prediction per activation and length, none for a GPU whose matrix rate is unknown."""
    for label, share in (("memory_share", memory_share), ("matrix_share", matrix_share)):
        if not 0 < share <= 1:
            raise RooflineError(f"{label} = {share}: must be above 0 and at most 1")
    if min(*lengths, step_tokens) < 1:
        raise RooflineError(f"prompts of {lengths} tokens in steps of {step_tokens}: must be at least 1")
    rates, chosen = find_rates(gpu), find_gpu(gpu)
    if rates is None:
        return []
    gb_s = list(chosen.bandwidths().values())[-1]
    published = PUBLISHED.get((chosen.title, model))
    predictions = []
    for activation in rates.activations():
        for tokens in lengths:
            ops = list_prompt_ops(spec, step, tokens, step_tokens)
            times = [_op_seconds(op, step, rates, activation, gb_s) for op in ops]
            memory = sum(read_s for read_s, _ in times) / memory_share
            matrix = sum(compute_s for _, compute_s in times) / matrix_share
            predicted = sum(max(read_s / memory_share, compute_s / matrix_share) for read_s, compute_s in times)
            predictions.append(
                PromptPrediction(
                    tokens=tokens,
                    activation=activation,
                    memory_ms=1e3 * memory,
                    matrix_ms=1e3 * matrix,
                    predicted_ms=1e3 * predicted,
                    predicted_tok_s=tokens / predicted,
                    ceiling_tok_s=tokens / sum(max(pair) for pair in times),
                    published_tok_s=None if published is None else published.tok_s.get(tokens),
                    status="predicted" if chosen.has_run else NOT_RUN,
                )
            )
    return predictions


def list_prompt_ops(spec: ModelSpec, step: StepShape, tokens: int, step_tokens: int) -> list[OpCost]:
    """Returns the ops of all steps of one prompt, with the traffic of activations in their vector bytes."""
    ops = []
    for done in range(0, tokens, step_tokens):
        new = min(step_tokens, tokens - done)
        shape = replace(step, requests=1, context=done, tokens=new, distinct_experts=None)
        for op in step_cost(spec, shape).ops:
            traffic = new * spec.num_layers * BF16 * count_activations(spec, op)
            flops = op.flops / new if op.part == "lm_head" else op.flops  # the last token alone reaches it
            ops.append(replace(op, vector_bytes=op.vector_bytes + traffic, flops=flops))
    return ops


def count_activations(spec: ModelSpec, op: OpCost) -> int:
    """Returns the values that an op reads and writes per token and layer; residuals belong to o, down and norms."""
    hidden, inter, active = spec.hidden_size, spec.intermediate_size, spec.num_active
    qkv = spec.q_size + 2 * spec.kv_size
    counts = {
        "rms_norm": 4 * hidden,  # two norms, each read and written
        "qkv": hidden + qkv,
        "rope_kv_write": 2 * (spec.q_size + spec.kv_size),
        "attention": 2 * spec.q_size,
        "o": spec.q_size + 2 * hidden,
        "route": hidden,
        "gate_up": active * (hidden + inter),
        "down": active * (inter + 2 * hidden) + 2 * hidden,  # outputs are written, then read to be summed
    }
    return counts.get(op.part if op.part in counts else op.op, 0)


def prompt_assumptions(
    gpu: str,
    model: str,
    *,
    step_tokens: int,
    memory_share: float = MEMORY_SHARE,
    matrix_share: float = MATRIX_SHARE,
) -> list[str]:
    """Returns the assumptions of the predictions, one line each."""
    rates = find_rates(gpu)
    if rates is None:
        return []
    lines = [
        f"prompts run in steps of up to {step_tokens} tokens; activations are written and read once per op",
        f"each op takes the longer of its traffic at {memory_share:.0%} of the read bandwidth and its products at "
        f"{matrix_share:.0%} of the matrix rate",
        f"matrix rate: {rates.source}",
    ]
    if (memory_share, matrix_share) == (MEMORY_SHARE, MATRIX_SHARE):
        lines.append("the same shares predict the prompts of 2048 and 8192 tokens measured on the H200 within 20 %")
    published = PUBLISHED.get((find_gpu(gpu).title, model))
    return lines if published is None else [*lines, f"published: another engine, {published.source}"]


def _op_seconds(
    op: OpCost, step: StepShape, rates: MatrixRates, activation: str, gb_s: float
) -> tuple[float, float]:
    """Returns the time of an op's traffic and of its products at the full rates."""
    is_mxfp4 = op.op == "moe_matmul" or step.dense == "mxfp4" or op.part in step.mxfp4_layers
    is_fast = activation == "mxfp8" and op.part in ON_MATRIX_CORES and is_mxfp4
    rate = rates.mxfp8 if is_fast and rates.mxfp8 is not None else rates.bf16
    return op.bytes / (gb_s * 1e9), op.flops / (rate * 1e12)

"""The final norm and lm_head for one to eight tokens, and where their largest logits are.

in   DecodeLmHeadOperands
out  logits  [T, V] fp32   of values rounded to bf16
     best    [N, T] int64  the highest rank in every N-th strip of 16 rows; a token's is the largest of all
     rank = the logit's bits in the order of integers, then ~id: larger for a larger logit, then for a lower id
N is the number of CTAs on this GPU (`count_best`), 1 on a CPU. The norm is rounded to bf16. `cuda` converts what
meets MXFP4 weights to 14-bit integers that share a scale per 64 to 256 columns, and multiplies them exactly.
`cuda:rows`, for one token and bf16, reads rows into registers, without a ring.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from firesteel.kernels.call_key import Described
from firesteel.kernels.cuda.source import CudaKernel
from firesteel.kernels.op.device_code import CudaCode
from firesteel.kernels.op.needs import cuda_ready
from firesteel.kernels.op.op import define_op
from firesteel.kernels.op.operands import RoundedOperands
from firesteel.kernels.op.profile import DENSE, OpProfile
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.op.tolerance import bf16
from firesteel.kernels.operands.shapes import ModelShapes, WorkloadPart
from firesteel.kernels.operands.weights import Mxfp4Weight, weight_parts
from firesteel.kernels.ops.linear import linear
from firesteel.kernels.ops.linear_operands import LinearOperands
from firesteel.kernels.ops.rms_norm import RmsNormOperands, rms_norm
from firesteel.kernels.stream.build import build_kernel, keep, launch
from firesteel.kernels.stream.plan import FIRST, ROUNDED, Machine, Streamed, find_machine, list_plans, plan_streamed
from firesteel.kernels.stream.refuse import refuse_here, refuse_layout, refuse_rounding, refuse_tokens, refuse_types
from firesteel.kernels.stream.ring import SET_TOKENS, STRIP_ROWS, Stream, refuse_weight
from firesteel.kernels.stream.shapes import GPT_OSS, list_cases, rounded_too
from firesteel.kernels.stream.workload import few_tokens, list_dense

STAGES = 8
ROW_WARPS = 16  # of cuda:rows
LEAST = -(1 << 63)  # below every rank


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLmHeadOperands(RoundedOperands):
    """`activation` is bf16 or mxfp8: what the norm is rounded to before it meets an MXFP4 weight."""

    r: Tensor  # [T, H] bf16, the residual
    norm: Tensor  # [H] bf16
    eps: float
    weight: Tensor | Mxfp4Weight  # [V, H] bf16 or MXFP4
    dependent: bool = False  # may begin before the kernel ahead of it ends; only weights and norm are read before
    describe = Described.describe  # a step has the same operands at every call


def _bytes(operands: DecodeLmHeadOperands) -> int:
    r, weight = operands.r, operands.weight
    return r.nbytes + operands.norm.nbytes + weight.nbytes + 4 * r.shape[0] * weight.shape[0]


@define_op(
    bytes=_bytes,
    tolerance=bf16(ulps=1, why="two roundings, the norm's averaged out; sums in free order"),
    keeps_choice=True,
    profile=OpProfile(DENSE, reads="linear.lm_head", kernels={"decode_lm_head_rows": "linear.lm_head"}),
    replaces=(rms_norm, linear),
)
def decode_lm_head(operands: DecodeLmHeadOperands) -> tuple[Tensor, Tensor]:
    x, _ = rms_norm.reference(RmsNormOperands(residual=operands.r, weight=operands.norm, eps=operands.eps))
    product = LinearOperands(x=x, weight=operands.weight, activation=operands.activation)
    logits = linear.reference(product).float()
    return logits, find_best(logits, count_best(operands.r, operands.weight))


def count_best(r: Tensor, weight: Tensor | Mxfp4Weight) -> int:
    """Returns N, the rows of `best`."""
    if not r.is_cuda or _refuse(r, weight):
        return 1
    return _plan_for(find_machine(r.device), r, weight, "bf16").num_ctas


def find_best(logits: Tensor, parts: int) -> Tensor:
    """Returns the highest ranks [parts, T] of logits [T, V]. NaN ranks highest, whatever its sign."""
    bits = logits.where(~logits.isnan(), torch.nan).view(torch.int32)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    ids = torch.arange(logits.shape[1], device=logits.device)
    ranks = ordered << 32 | (~ids & 0xFFFFFFFF)
    padded = functional.pad(ranks, (0, -ranks.shape[1] % (STRIP_ROWS * parts)), value=LEAST)
    best: Tensor = padded.unflatten(1, (-1, parts, STRIP_ROWS)).amax((1, 3))
    return best.T.contiguous()


def _refuse(r: Tensor, weight: Tensor | Mxfp4Weight) -> str | None:
    return refuse_tokens(r) or refuse_weight(weight)


def _accepts(operands: DecodeLmHeadOperands) -> str | None:
    r, norm, weight, activation = operands.r, operands.norm, operands.weight, operands.activation
    values, scales = weight_parts(weight)
    return (
        _refuse(r, weight)
        or refuse_types(r, norm, values if scales is None else None)
        or refuse_layout(r, norm, values, scales)
        or refuse_rounding(weight, activation)
        or refuse_here(r, lambda machine: _plan_for(machine, r, weight, activation))
    )


def shared_bytes(stream: Stream) -> int:
    return stream.ring_bytes + stream.x_bytes + stream.scratch_bytes


@keep
def plan(
    machine: Machine, *, is_fp4: bool, tokens: int, hidden: int, vocabulary: int, rounds_x: bool = False
) -> Streamed:
    return plan_streamed(
        "decode_lm_head",
        machine,
        is_fp4=is_fp4,
        columns=hidden,
        tokens=tokens,
        stages=STAGES,
        shared=shared_bytes,
        strips=vocabulary // STRIP_ROWS,
        sizes={"HIDDEN": hidden, "VOCABULARY": vocabulary, "ROUNDS_X": rounds_x},
        alone=is_fp4,
        fewest_held=SET_TOKENS,
    )


def _plan_for(machine: Machine, r: Tensor, weight: Tensor | Mxfp4Weight, activation: str) -> Streamed:
    vocabulary, hidden = weight.shape
    return plan(
        machine,
        is_fp4=isinstance(weight, Mxfp4Weight),
        tokens=r.shape[0],
        hidden=hidden,
        vocabulary=vocabulary,
        rounds_x=activation == ROUNDED,
    )


@decode_lm_head.implementation("cuda", needs=cuda_ready(), accepts=_accepts)
def cuda_decode_lm_head(operands: DecodeLmHeadOperands) -> tuple[Tensor, Tensor]:
    r, weight = operands.r, operands.weight
    planned = _plan_for(find_machine(r.device), r, weight, operands.activation)
    logits = torch.empty(r.shape[0], weight.shape[0], dtype=torch.float32, device=r.device)
    best = torch.empty(planned.num_ctas, r.shape[0], dtype=torch.int64, device=r.device)
    args = (r, operands.norm, *weight_parts(weight), logits, best, operands.eps, r.shape[0])
    planned.launch(args, operands.dependent)
    return logits, best


def _accepts_rows(operands: DecodeLmHeadOperands) -> str | None:
    if operands.r.shape[0] != 1 or isinstance(operands.weight, Mxfp4Weight):
        return "is for one token and bf16 weights"
    return _accepts(operands)


@keep
def rows_kernel(*, hidden: int, vocabulary: int) -> CudaKernel:
    sizes = {"HIDDEN": hidden, "VOCABULARY": vocabulary, "NUM_WARPS": ROW_WARPS}
    return build_kernel("decode_lm_head_rows", sizes, threads=32 * ROW_WARPS)


@decode_lm_head.implementation("cuda:rows", needs=cuda_ready(), accepts=_accepts_rows)
def cuda_decode_lm_head_rows(operands: DecodeLmHeadOperands) -> tuple[Tensor, Tensor]:
    r, weight = operands.r, operands.weight
    vocabulary, hidden = weight.shape
    num_ctas = count_best(r, weight)
    logits = torch.empty(1, vocabulary, dtype=torch.float32, device=r.device)
    best = torch.empty(num_ctas, 1, dtype=torch.int64, device=r.device)
    kernel = rows_kernel(hidden=hidden, vocabulary=vocabulary)
    args = (r, operands.norm, weight_parts(weight)[0], logits, best, operands.eps)
    launch(kernel, (num_ctas,), args, operands.dependent, tile=f"{ROW_WARPS} warps")
    return logits, best


decode_lm_head.prefer("cuda:rows", "cuda")


@decode_lm_head.device_code
def device_code(capability: tuple[int, int]) -> Iterator[CudaCode]:
    def plan_big(machine: Machine, is_fp4: bool, tokens: int, rounds_x: bool) -> Streamed:
        sizes = {"hidden": GPT_OSS.hidden, "vocabulary": GPT_OSS.vocabulary}
        return plan(machine, is_fp4=is_fp4, tokens=tokens, rounds_x=rounds_x, **sizes)

    yield from list_plans(capability, plan_big)
    if capability >= FIRST:
        kernel = rows_kernel(hidden=GPT_OSS.hidden, vocabulary=GPT_OSS.vocabulary)
        yield CudaCode(variant="cuda:rows bf16-weight T=1", kernel=kernel)


@decode_lm_head.samples
def samples(device: torch.device) -> Iterator[Sample]:
    for label, tokens, sizes, draw in list_cases(device):
        for held, weight in draw.weights(sizes.vocabulary, sizes.hidden):
            operands = DecodeLmHeadOperands(
                r=draw.normal(tokens, sizes.hidden), norm=draw.normal(sizes.hidden), eps=1e-5, weight=weight
            )
            yield from rounded_too(label, held, operands)


@decode_lm_head.workloads
@few_tokens
def workloads(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    spec = shapes.spec

    def draw(weight: Tensor | Mxfp4Weight) -> DecodeLmHeadOperands:
        return DecodeLmHeadOperands(
            r=shapes.normal(m, spec.hidden_size),
            norm=shapes.bias(spec.hidden_size),
            eps=spec.rms_eps,
            weight=weight,
            activation=activation,
        )

    yield from list_dense(shapes, m, activation, (spec.vocab_size, spec.hidden_size), draw)

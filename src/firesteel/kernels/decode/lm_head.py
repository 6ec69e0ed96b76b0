"""The final norm and lm_head for one to eight tokens, and where their largest logits are.

in   r          [T, H] bf16    residual
     norm       [H] bf16, eps
     weight     [V, H] bf16 or MXFP4 (Mxfp4Weight)
     activation bf16, or mxfp8: what the norm is rounded to before it meets an MXFP4 weight
     dependent  may begin before what is ahead of it ends: nothing but weights and norm is read before its wait
out  logits     [T, V] fp32    of values rounded to bf16
     best       [N, T] int64   the highest rank in every N-th strip of 16 rows; a token's is the largest of all
     rank = the logit's bits in the order of whole numbers, then ~id: larger for a larger logit, then for a lower id
N is the number of programs on this GPU (`count_best`), 1 on a CPU. The norm is rounded to bf16. `cuda` cuts what
meets MXFP4 weights to whole numbers of 14 bits, 64 to 256 columns together, and multiplies them exactly.
`cuda:rows`, for one token and bf16, reads rows into registers, without a ring.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from firesteel.kernels.cuda.source import CudaKernel
from firesteel.kernels.op.needs import cuda_ready
from firesteel.kernels.op.op import CudaCode, Sample, define_op
from firesteel.kernels.op.tolerance import bf16
from firesteel.kernels.operands.weights import Mxfp4Weight
from firesteel.kernels.ops.linear import linear
from firesteel.kernels.ops.rms_norm import rms_norm
from firesteel.kernels.stream.launch import (
    FIRST,
    ROUNDED,
    Machine,
    Streamed,
    build_kernel,
    find_machine,
    keep,
    launch,
    list_plans,
    plan_streamed,
    refuse_here,
    refuse_layout,
    refuse_rounding,
    refuse_tokens,
    refuse_types,
    weight_parts,
)
from firesteel.kernels.stream.ring import MOST_PART_BYTES, STRIP_ROWS, Stream, refuse_weight
from firesteel.kernels.stream.shapes import GPT_OSS, list_cases, rounded_too

STAGES = {False: 8, True: 8}  # by whether weights are packed
ROW_WARPS = 16  # of cuda:rows
LEAST = -(1 << 63)  # below every rank


def _bytes(
    r: Tensor, norm: Tensor, eps: float, weight: Tensor | Mxfp4Weight,
    activation: str = "bf16", dependent: bool = False,
) -> int:  # fmt: skip
    return r.nbytes + norm.nbytes + weight.nbytes + 4 * r.shape[0] * weight.shape[0]


@define_op(bytes=_bytes, tolerance=bf16(ulps=1, why="two roundings, the norm's averaged out; sums in free order"))
def decode_lm_head(
    r: Tensor, norm: Tensor, eps: float, weight: Tensor | Mxfp4Weight,
    activation: str = "bf16", dependent: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    x, _ = rms_norm.reference(r, None, norm, eps)
    logits = linear.reference(x, weight, None, activation).float()
    return logits, find_best(logits, count_best(r, weight))


def count_best(r: Tensor, weight: Tensor | Mxfp4Weight) -> int:
    if not r.is_cuda or _refuse(r, weight):
        return 1
    return _plan_for(find_machine(r.device), r, weight, "bf16").programs


def find_best(logits: Tensor, parts: int) -> Tensor:
    """[parts, T] of logits [T, V]. What is no number ranks highest, whatever its sign."""
    bits = logits.where(~logits.isnan(), torch.nan).view(torch.int32)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    ids = torch.arange(logits.shape[1], device=logits.device)
    ranks = ordered << 32 | (~ids & 0xFFFFFFFF)
    padded = functional.pad(ranks, (0, -ranks.shape[1] % (STRIP_ROWS * parts)), value=LEAST)
    best: Tensor = padded.unflatten(1, (-1, parts, STRIP_ROWS)).amax((1, 3))
    return best.T.contiguous()


def _refuse(r: Tensor, weight: Tensor | Mxfp4Weight) -> str | None:
    return refuse_tokens(r) or refuse_weight(weight)


def _accepts(
    r: Tensor, norm: Tensor, eps: float, weight: Tensor | Mxfp4Weight,
    activation: str = "bf16", dependent: bool = False,
) -> str | None:  # fmt: skip
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
        "decode_lm_head", machine, is_fp4=is_fp4, columns=hidden, tokens=tokens, stages=STAGES[is_fp4],
        shared=shared_bytes, strips=vocabulary // STRIP_ROWS,
        sizes={"HIDDEN": hidden, "VOCABULARY": vocabulary, "ROUNDS_X": rounds_x}, alone=is_fp4,
        most_part_bytes=MOST_PART_BYTES,
    )  # fmt: skip


def _plan_for(machine: Machine, r: Tensor, weight: Tensor | Mxfp4Weight, activation: str) -> Streamed:
    is_fp4, (vocabulary, hidden) = isinstance(weight, Mxfp4Weight), weight.shape
    return plan(
        machine, is_fp4=is_fp4, tokens=r.shape[0], hidden=hidden, vocabulary=vocabulary,
        rounds_x=activation == ROUNDED,
    )  # fmt: skip


@decode_lm_head.implementation("cuda", needs=cuda_ready(), accepts=_accepts)
def cuda_decode_lm_head(
    r: Tensor, norm: Tensor, eps: float, weight: Tensor | Mxfp4Weight,
    activation: str = "bf16", dependent: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    planned = _plan_for(find_machine(r.device), r, weight, activation)
    logits = torch.empty(r.shape[0], weight.shape[0], dtype=torch.float32, device=r.device)
    best = torch.empty(planned.programs, r.shape[0], dtype=torch.int64, device=r.device)
    planned.launch((r, norm, *weight_parts(weight), logits, best, eps, r.shape[0]), dependent)
    return logits, best


def _accepts_rows(
    r: Tensor, norm: Tensor, eps: float, weight: Tensor | Mxfp4Weight,
    activation: str = "bf16", dependent: bool = False,
) -> str | None:  # fmt: skip
    if r.shape[0] != 1 or isinstance(weight, Mxfp4Weight):
        return "is for one token and bf16 weights"
    return _accepts(r, norm, eps, weight, activation, dependent)


@keep
def rows_kernel(*, hidden: int, vocabulary: int) -> CudaKernel:
    sizes = {"HIDDEN": hidden, "VOCABULARY": vocabulary, "NUM_WARPS": ROW_WARPS}
    return build_kernel("decode_lm_head_rows", sizes, threads=32 * ROW_WARPS)


@decode_lm_head.implementation("cuda:rows", needs=cuda_ready(), accepts=_accepts_rows)
def cuda_decode_lm_head_rows(
    r: Tensor, norm: Tensor, eps: float, weight: Tensor | Mxfp4Weight,
    activation: str = "bf16", dependent: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    vocabulary, hidden = weight.shape
    programs = count_best(r, weight)
    logits = torch.empty(1, vocabulary, dtype=torch.float32, device=r.device)
    best = torch.empty(programs, 1, dtype=torch.int64, device=r.device)
    kernel = rows_kernel(hidden=hidden, vocabulary=vocabulary)
    args = (r, norm, weight_parts(weight)[0], logits, best, eps)
    launch(kernel, (programs,), args, dependent, tile=f"{ROW_WARPS} warps")
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
            r, norm = draw.normal(tokens, sizes.hidden), draw.normal(sizes.hidden)
            yield from rounded_too(label, held, (r, norm, 1e-5, weight))

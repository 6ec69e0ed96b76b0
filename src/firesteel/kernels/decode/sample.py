"""Makes the most likely token of each row the next step's input, for one to eight rows.

in   DecodeSampleOperands
out  token_ids, positions, kv_lens, num_stored, full_slots, window_slots, r, largest: the same tensors
A position past the end of a table gets a slot of its last page; whoever counts the steps stops before that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from firesteel.kernels.cuda.source import CudaKernel
from firesteel.kernels.decode.lm_head import find_best
from firesteel.kernels.op.device_code import CudaCode
from firesteel.kernels.op.needs import cuda_ready
from firesteel.kernels.op.op import define_op
from firesteel.kernels.op.operands import Operands
from firesteel.kernels.op.profile import SAMPLING, OpProfile
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.op.tolerance import exact
from firesteel.kernels.operands.shapes import PAGE_SIZE, ModelShapes, WorkloadPart
from firesteel.kernels.stream.build import build_kernel, keep, launch
from firesteel.kernels.stream.plan import FIRST
from firesteel.kernels.stream.refuse import refuse_layout, refuse_strides, refuse_tokens, refuse_types
from firesteel.kernels.stream.shapes import GPT_OSS, list_cases
from firesteel.kernels.stream.workload import CONTEXT, few_tokens

THREADS = 512
BEST_PARTS = 132  # rows of `best` in workloads: CTAs of an H200


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSampleOperands(Operands):
    best: Tensor  # [N, T] int64, of decode_lm_head: the largest of a column is the token
    embedding: Tensor  # [V, H] bf16
    token_ids: Tensor  # [T] int64, written
    positions: Tensor  # [T] int64, each grows by one
    kv_lens: Tensor  # [T] int64, written: the new position + 1
    num_stored: Tensor  # [T] int64, each grows by one: the tokens that no row of the next step writes
    full_slots: Tensor  # [T] int64, written: page * S + offset of the new position, in layers that see all tokens
    window_slots: Tensor  # [T] int64, written: the same in layers with a window
    full_table: Tensor  # [T, N] int64, pages of each request
    window_table: Tensor  # [T, M] int64
    page_size: int
    r: Tensor  # [T, H] bf16, written: the token's embedding
    largest: Tensor  # [T] fp32, written: the token's logit
    dependent: bool = False  # may begin before the kernel ahead of it ends; nothing is read before that

    @property
    def numbers(self) -> tuple[Tensor, ...]:
        """Returns the integers [T] that are written."""
        counts = (self.positions, self.kv_lens, self.num_stored)
        return self.token_ids, *counts, self.full_slots, self.window_slots

    @property
    def written(self) -> tuple[Tensor, ...]:
        return *self.numbers, self.r, self.largest


def _bytes(operands: DecodeSampleOperands) -> int:
    return operands.best.nbytes + 2 * operands.r.nbytes + 10 * operands.positions.nbytes


@define_op(
    bytes=_bytes,
    tolerance=exact(why="whole numbers and copies"),
    keeps_choice=True,
    profile=OpProfile(SAMPLING),
)
def decode_sample(operands: DecodeSampleOperands) -> tuple[Tensor, ...]:
    top = operands.best.amax(0)
    operands.token_ids.copy_(~top & 0xFFFFFFFF)
    bits = (top >> 32).int()
    operands.largest.copy_(torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).view(torch.float32))
    operands.r.copy_(operands.embedding[operands.token_ids])
    positions, page_size = operands.positions, operands.page_size
    positions += 1
    operands.kv_lens.copy_(positions + 1)
    operands.num_stored.add_(1)
    full = (operands.full_slots, operands.full_table)
    for slots, table in (full, (operands.window_slots, operands.window_table)):
        pages = (positions // page_size).clamp(max=table.shape[1] - 1)
        slots.copy_(table.gather(1, pages[:, None])[:, 0] * page_size + positions % page_size)
    return operands.written


def _accepts(operands: DecodeSampleOperands) -> str | None:
    embedding, r, largest = operands.embedding, operands.r, operands.largest
    if r.shape[1] % 8:
        return f"copies rows of a multiple of 8 values, not {r.shape[1]}"
    integers = (operands.best, *operands.numbers, operands.full_table, operands.window_table)
    return (
        refuse_tokens(r)
        or refuse_types(embedding, r)
        or refuse_types(*integers, wanted=torch.int64)
        or refuse_types(largest, wanted=torch.float32)
        or refuse_layout(embedding, r)
        or refuse_strides(*integers, largest)
    )


@keep
def kernel(hidden: int) -> CudaKernel:
    return build_kernel("decode_sample", {"HIDDEN": hidden}, threads=THREADS)


@decode_sample.implementation("cuda", needs=cuda_ready(), accepts=_accepts)
def cuda_decode_sample(operands: DecodeSampleOperands) -> tuple[Tensor, ...]:
    best, r = operands.best, operands.r
    full_table, window_table = operands.full_table, operands.window_table
    sizes = (best.shape[0], operands.page_size, full_table.shape[1], window_table.shape[1])
    tensors = (best, operands.embedding, *operands.numbers, full_table, window_table, r, operands.largest)
    launch(kernel(r.shape[1]), (r.shape[0],), (*tensors, *sizes), operands.dependent)
    return operands.written


decode_sample.prefer("cuda")


@decode_sample.device_code
def device_code(capability: tuple[int, int]) -> Iterator[CudaCode]:
    if capability >= FIRST:
        yield CudaCode(variant="cuda", kernel=kernel(GPT_OSS.hidden))


@decode_sample.samples
def samples(device: torch.device) -> Iterator[Sample]:
    """Begins a page with the first request and passes the end of its table with the second.

    Of several rows there is also a sample in which they are consecutive tokens of one request.
    """
    page_size, width = 16, 9
    for label, tokens, sizes, draw in list_cases(device):
        logits = draw.normal(tokens, sizes.vocabulary).float()
        positions = draw.permutation(page_size * (width - 1))[:tokens].clone()
        positions[:2] = torch.tensor([3 * page_size - 1, page_size * width - 1], device=device)[:tokens]
        pages = [
            draw.permutation(tokens * width + 5)[: tokens * width].view(tokens, width).clone() for _ in range(2)
        ]
        numbers = [torch.zeros(tokens, dtype=torch.int64, device=device) for _ in range(4)]
        operands = DecodeSampleOperands(
            best=find_best(logits, 7),
            embedding=draw.normal(sizes.vocabulary, sizes.hidden),
            token_ids=numbers[0],
            positions=positions,
            kv_lens=numbers[1],
            num_stored=positions.clone(),
            full_slots=numbers[2],
            window_slots=numbers[3],
            full_table=pages[0],
            window_table=pages[1],
            page_size=page_size,
            r=draw.normal(tokens, sizes.hidden),
            largest=torch.zeros(tokens, device=device),
        )
        yield Sample(label, (operands,))
        if tokens > 1:
            first = page_size - 2
            verifying = replace(
                operands,
                positions=torch.arange(first, first + tokens, device=device),
                num_stored=torch.full((tokens,), first, device=device),
                full_table=pages[0][:1].repeat(tokens, 1),
                window_table=pages[1][:1].repeat(tokens, 1),
            )
            yield Sample(f"{label} of one request", (verifying,))


@decode_sample.workloads
@few_tokens
def workloads(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    spec = shapes.spec
    width = -(-min(CONTEXT, spec.max_context) // PAGE_SIZE)

    def draw() -> tuple[DecodeSampleOperands]:
        numbers = torch.zeros(4, m, dtype=torch.int64, device=shapes.device)
        positions = shapes.integers(width * PAGE_SIZE, m)
        operands = DecodeSampleOperands(
            best=find_best(shapes.normal(m, spec.vocab_size).float(), BEST_PARTS),
            embedding=shapes.normal(spec.vocab_size, spec.hidden_size),
            token_ids=numbers[0],
            positions=positions,
            kv_lens=numbers[1],
            num_stored=positions.clone(),
            full_slots=numbers[2],
            window_slots=numbers[3],
            full_table=shapes.permutation(m * width).view(m, width),
            window_table=shapes.permutation(m * width).view(m, width),
            page_size=PAGE_SIZE,
            r=shapes.normal(m, spec.hidden_size),
            largest=torch.zeros(m, device=shapes.device),
        )
        return (operands,)

    yield WorkloadPart("", 0.0, 2 * spec.vocab_size * spec.hidden_size, draw)

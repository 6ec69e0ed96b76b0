"""Rotates queries and keys by their positions, in halves (NeoX), and writes keys and values into their pages.

in   RopeKvWriteOperands
out  q                 [T, Q, D]  rotated, also those of tokens that are not stored
     k_pages, v_pages             the same tensors
     clipped                      the same tensor, if given
Computed in fp32, each result rounded once, to its own type. NaN stays NaN and is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from firesteel.device import find_capability
from firesteel.formats import e4m3
from firesteel.kernels.ledger import note_clipped
from firesteel.kernels.op.device_code import DeviceCode
from firesteel.kernels.op.needs import triton_ready
from firesteel.kernels.op.op import define_op
from firesteel.kernels.op.operands import Operands
from firesteel.kernels.op.profile import ATTENTION, OpProfile
from firesteel.kernels.op.rows import rows_of
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.op.tolerance import exact
from firesteel.kernels.operands.shapes import PAGE_SIZE, ModelShapes, WorkloadPart
from firesteel.kernels.rope import RopeSpec, rope_table

FP8 = torch.float8_e4m3fn
PAGE_TYPES = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32", FP8: "*u8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeKvWriteOperands(Operands):
    q: Tensor  # [T, Q, D]
    k: Tensor  # [T, K, D]
    v: Tensor  # [T, K, D]
    positions: Tensor  # [T] int64
    table: Tensor  # [C, D] fp32, of rope_table
    k_pages: Tensor  # [P, K, S, D], written: bf16, fp16, fp32, or fp8 E4M3, saturating at 448
    v_pages: Tensor  # the same for values
    slots: Tensor  # [T] int64, page * S + offset; every slot at most once. Negative: nothing is stored
    key_scale: float = 1.0  # keys are divided by it before they are rounded to fp8; 1.0 in wider pages
    value_scale: float = 1.0  # the same for values
    clipped: Tensor | None = None  # [1] int64, fp8 pages: grows by the number of scaled values beyond 448

    def results(self, q: Tensor) -> tuple[Tensor, ...]:
        pages = (self.k_pages, self.v_pages)
        return (q, *pages) if self.clipped is None else (q, *pages, self.clipped)


def _bytes(operands: RopeKvWriteOperands) -> int:
    q, k, v, positions = operands.q, operands.k, operands.v, operands.positions
    per_token = positions.nbytes + operands.slots.nbytes + positions.numel() * operands.table[0].nbytes
    return 2 * q.nbytes + k.nbytes + v.nbytes + per_token + 2 * k.numel() * operands.k_pages.element_size()


def _refuse_scales(operands: RopeKvWriteOperands) -> str | None:
    return refuse_scales(operands.k_pages, operands.key_scale, operands.value_scale, operands.clipped)


def refuse_scales(pages: Tensor, key_scale: float, value_scale: float, clipped: Tensor | None = None) -> str | None:
    """Returns why pages of this type have no scales and no counter, or None."""
    is_plain = key_scale == 1.0 and value_scale == 1.0 and clipped is None
    return None if is_plain or pages.dtype == FP8 else f"has scales for fp8 e4m3 pages, not {pages.dtype}"


def _list_rows(operands: RopeKvWriteOperands, result: tuple[Tensor, ...]) -> list[Tensor]:
    """Returns the queries and what was stored for them."""
    size, is_stored = operands.k_pages.shape[2], operands.slots >= 0
    slots = operands.slots.clamp(min=0)
    stored = [pages.view(torch.uint8) if pages.dtype == FP8 else pages for pages in result[1:3]]
    wanted = [pages[slots // size, :, slots % size] for pages in stored]
    return [result[0], *(rows.masked_fill(~is_stored[:, None, None], 0) for rows in wanted)]


@define_op(
    bytes=_bytes,
    tolerance=exact(why="the products and sums of two values, a quotient, each rounded as written"),
    accepts=_refuse_scales,
    keeps_choice=True,
    profile=OpProfile(ATTENTION, reads="rope_kv_write", kernels={"rope_kv_write_kernel": "rope_kv_write"}),
    rows=rows_of("q", "k", "v", "positions", "slots", results=_list_rows),
    is_row_invariant=True,
)
def rope_kv_write(operands: RopeKvWriteOperands) -> tuple[Tensor, ...]:
    rotated = rotate_and_write(operands)
    _note_clipped(operands)
    return operands.results(rotated)


def rotate_and_write(operands: RopeKvWriteOperands) -> Tensor:
    """Returns rotated queries; for ops that do not tell the ledger what was clipped."""
    cos, sin = operands.table[operands.positions].unsqueeze(1).chunk(2, dim=-1)
    keys = _divide(_rotate(operands.k, cos, sin), operands.key_scale)
    values = _divide(operands.v.float(), operands.value_scale)
    is_stored = operands.slots >= 0
    slots, keys, values = operands.slots[is_stored], keys[is_stored], values[is_stored]
    _write(operands.k_pages, slots, keys)
    _write(operands.v_pages, slots, values)
    if operands.clipped is not None:
        operands.clipped.add_((keys.abs() > e4m3.LARGEST).sum() + (values.abs() > e4m3.LARGEST).sum())
    return _rotate(operands.q, cos, sin).to(operands.q.dtype)


def _note_clipped(operands: RopeKvWriteOperands) -> None:
    if operands.clipped is not None:
        note_clipped(operands.clipped)


def _divide(x: Tensor, scale: float) -> Tensor:
    """Divides by a tensor: by a number, torch on a GPU multiplies with the reciprocal, which rounds differently."""
    return x / torch.full((), scale, device=x.device)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _write(pages: Tensor, slots: Tensor, x: Tensor) -> None:
    """Writes into slots, saturating: torch's own cast to fp8 turns large values into NaN."""
    numbers, offsets = slots // pages.shape[2], slots % pages.shape[2]
    if pages.dtype == FP8:
        pages.view(torch.uint8)[numbers, :, offsets] = e4m3.encode(x)
    else:
        pages[numbers, :, offsets] = x.to(pages.dtype)


def _accepts(operands: RopeKvWriteOperands) -> str | None:
    k_pages, v_pages = operands.k_pages, operands.v_pages
    if k_pages.dtype not in PAGE_TYPES or k_pages.dtype != v_pages.dtype:
        return f"writes bf16, fp16, fp32 or fp8 e4m3 pages, not {k_pages.dtype} and {v_pages.dtype}"
    capability = find_capability(k_pages.device)
    if k_pages.dtype == FP8 and capability is not None and capability < (8, 9):
        return "writes fp8 pages from compute capability 8.9 on, where attention reads them"
    if any(heads.stride(-1) != 1 for heads in (operands.q, operands.k, operands.v)):
        return "wants heads whose values lie side by side"
    whole = (operands.positions, operands.table, k_pages, v_pages, operands.slots)
    if not all(tensor.is_contiguous() for tensor in whole):
        return "wants contiguous positions, table, pages and slots"
    return _refuse_scales(operands)


@rope_kv_write.implementation("triton", needs=triton_ready(), accepts=_accepts, is_row_invariant=True)
def triton_rope_kv_write(operands: RopeKvWriteOperands) -> tuple[Tensor, ...]:
    from firesteel.kernels.triton.rope_kv_write import launch

    q = operands.q
    rotated = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    launch(
        q,
        operands.k,
        operands.v,
        operands.positions,
        operands.table,
        rotated,
        _bits(operands.k_pages),
        _bits(operands.v_pages),
        operands.slots,
        operands.key_scale,
        operands.value_scale,
        operands.clipped,
    )
    _note_clipped(operands)
    return operands.results(rotated)


def _bits(pages: Tensor) -> Tensor:
    return pages.view(torch.uint8) if pages.dtype == FP8 else pages


rope_kv_write.prefer("triton")


@rope_kv_write.device_code
def device_code(capability: tuple[int, int]) -> Iterator[DeviceCode]:
    from firesteel.kernels.triton.rope_kv_write import HEADS_AT_ONCE, NUM_WARPS, rope_kv_write_kernel

    signature = dict.fromkeys(("q", "k", "v", "turned_q"), "*bf16") | {"positions": "*i64", "slots": "*i64"}
    signature |= {f"{name}_{of}_stride": "i32:16" for name in "qkv" for of in ("token", "head")}
    signature |= {"table": "*fp32", "key_scale": "fp32", "value_scale": "fp32"}
    constants = {"Q": 64, "K": 8, "D": 64, "S": 64, "HEADS": HEADS_AT_ONCE, "HALF": 32}
    for name, dtype in (("triton", torch.bfloat16), ("triton fp8-pages", FP8)):
        if dtype != FP8 or capability >= (8, 9):
            pages = dict.fromkeys(("k_pages", "v_pages"), PAGE_TYPES[dtype])
            counter: dict[str, str] = {"clipped": "*i64"} if dtype == FP8 else {}
            absent = {} if dtype == FP8 else {"clipped": None}
            yield DeviceCode(
                variant=name,
                kernel=rope_kv_write_kernel,
                signature={**signature, **pages, **counter},
                constants={**constants, **absent},
                num_warps=NUM_WARPS,
                enable_fp_fusion=False,
            )


@rope_kv_write.samples
def samples(device: torch.device) -> Iterator[Sample]:
    generator = torch.Generator(device).manual_seed(1)
    table = rope_table(RopeSpec(theta=150000.0, factor=32.0), 64, 131072, device)
    plain = (1.0, 1.0)
    for tokens, page_size, dtype, scales in (
        (1, 64, torch.bfloat16, plain),
        (65, 16, torch.bfloat16, plain),
        (300, 64, torch.bfloat16, plain),
        (65, 64, FP8, plain),
        (65, 64, FP8, (0.25, 0.125)),
        (33, 16, FP8, (0.003, 0.0057)),
        (20, 16, FP8, (0.003, 0.0057)),
    ):
        qkv = torch.randn(tokens, 80, 64, device=device, generator=generator).bfloat16()
        q, k, v = qkv.split([64, 8, 8], dim=1)
        positions = torch.randint(131072, (tokens,), device=device, generator=generator)
        k_pages, v_pages = torch.zeros(2, 512 // page_size, 8, page_size, 64, device=device).to(dtype)
        slots = torch.randperm(512, device=device, generator=generator)[:tokens]
        label = f"T={tokens} S={page_size} {dtype}"
        if tokens == 20:
            slots[-3:] = -1
            label += " 3 not stored"
        operands = RopeKvWriteOperands(
            q=q, k=k, v=v, positions=positions, table=table, k_pages=k_pages, v_pages=v_pages, slots=slots
        )
        if scales != plain:
            label += f" scales {scales[0]:g} and {scales[1]:g}"
            counter = torch.full((1,), 1 << 40, device=device)
            operands = replace(operands, key_scale=scales[0], value_scale=scales[1], clipped=counter)
        yield Sample(label, (operands,))


@rope_kv_write.workloads
def workloads(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    """Yields one token of each of M requests: positions and slots are anywhere."""
    spec = shapes.spec
    heads = [spec.num_heads, spec.num_kv_heads, spec.num_kv_heads]
    pages = -(-m // PAGE_SIZE) + 1

    def draw() -> tuple[RopeKvWriteOperands]:
        q, k, v = shapes.normal(m, sum(heads), spec.head_dim).split(heads, dim=1)
        operands = RopeKvWriteOperands(
            q=q,
            k=k,
            v=v,
            positions=shapes.integers(spec.max_context, m),
            table=shapes.rope_table,
            k_pages=shapes.normal(pages, spec.num_kv_heads, PAGE_SIZE, spec.head_dim),
            v_pages=shapes.normal(pages, spec.num_kv_heads, PAGE_SIZE, spec.head_dim),
            slots=shapes.permutation(pages * PAGE_SIZE)[:m],
        )
        return (operands,)

    yield WorkloadPart("", 0.0, 4 * pages * PAGE_SIZE * (spec.q_size + 2 * spec.kv_size), draw)

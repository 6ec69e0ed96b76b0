"""Expert matmuls for many tokens on Hopper in FP8: CUDA C++ with wgmma.

Weights are widened from MXFP4 to E4M3, exactly, with one power of two per row (`formats/e2m1_rows.py`). The order
of work is that of `bf16`: tokens are sorted by expert, copied to their places, multiplied twice and summed.
Copying rounds them (`csrc/moe_round.cu`), and a second pass rounds the results of the first matmul alike, because
the largest value of a row is known only when all CTAs that compute it have ended. `cuda:wgmma_fp8` rounds a token
to one E4M3 column, `cuda:wgmma_split` to two, high and low, which hold bf16 values nearly exactly.

Experts with a row that E4M3 cannot represent are computed by `bf16` in bf16.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from firesteel.kernels.cuda.source import CudaKernel
from firesteel.kernels.op.device_code import CudaCode
from firesteel.kernels.op.tolerance import Tolerance
from firesteel.kernels.operands.activation import FP8
from firesteel.kernels.operands.weights import Experts
from firesteel.kernels.stream.build import build_kernel, keep, launch
from firesteel.kernels.stream.plan import FIRST, find_machine, machine_of
from firesteel.kernels.stream.shapes import Sizes
from firesteel.kernels.wgmma import bf16
from firesteel.kernels.wgmma.bf16 import BLOCK, Shape, Sorting

ROUND_THREADS = 128
ACTIVATIONS = {1: FP8, 2: "bf16"}  # by the number of E4M3 columns per token
SPLIT = "cuda:wgmma_split"
NAMES = {1: "cuda:wgmma_fp8", 2: SPLIT}
# Codes of E4M3 are 2^-3 to 2^-4 of a value apart. With the emulated sums, cut to 14 bits, the rms error is 0.3 %.
TOLERANCES = {
    1: Tolerance(
        worst=2.0**-5,
        rms=2.0**-7,
        why="tensor cores keep about 14 bits of FP8 sums: more results of SwiGLU are rounded to the next E4M3 code",
    ),
    2: None,
}


def _shape(columns: int, warpgroups: int, blocks: int, *widths: int) -> Shape:
    return Shape(warpgroups, blocks, widths, e4m3_columns=columns)


# By E4M3 columns per token: the largest average number of pairs per expert, with the shapes of gate and up and of
# down. None has run on a GPU: they are like those of `bf16`, with fewer tokens: registers hold the sums
# of tokens and those that the tensor cores make.
SHAPES = {
    1: (
        (16, _shape(1, 6, 1, 24, 16, 8), _shape(1, 5, 1, 32, 24, 16, 8)),
        (32, _shape(1, 4, 1, 64, 48, 32, 16), _shape(1, 4, 1, 64, 48, 32, 16)),
        (72, _shape(1, 3, 1, 96, 64, 32), _shape(1, 3, 1, 96, 64, 32)),
        (math.inf, _shape(1, 2, 2, 96, 64), _shape(1, 2, 2, 96, 64)),
    ),
    2: (
        (8, _shape(2, 6, 1, 16, 8), _shape(2, 5, 1, 16, 8)),
        (16, _shape(2, 4, 1, 32, 24, 16, 8), _shape(2, 4, 1, 32, 24, 16, 8)),
        (math.inf, _shape(2, 3, 1, 64, 48, 32, 16), _shape(2, 3, 1, 64, 48, 32, 16)),
    ),
}


def choose_shapes(columns: int, pairs: int, experts: int) -> tuple[Shape, Shape]:
    return next((up, down) for most, up, down in SHAPES[columns] if pairs <= most * experts)


def refuse(columns: int, x: Tensor, ids: Tensor, weights: Tensor, experts: Experts, activation: str) -> str | None:
    """Returns why these operands cannot be computed in this way, or None."""
    if activation != ACTIVATIONS[columns]:
        cure = f": --prefill-activation {FP8} rounds them" if columns == 1 else ""
        return f"computes with {ACTIVATIONS[columns]} activations, not {activation}{cure}"
    if why := bf16.refuse_range(experts):  # then some do not fit E4M3 either
        return f"leaves experts that E4M3 cannot represent to cuda:wgmma, which {why}"
    shapes = choose_shapes(columns, ids.numel(), len(experts.down_bias))
    return bf16.refuse_sizes(x, ids, weights, experts, shapes)


@keep
def plan_round(*, hidden: int, active: int, columns: int, is_inner: bool) -> CudaKernel:
    defines = {"HIDDEN": hidden, "ACTIVE": active, "COLUMNS": columns, "IS_INNER": is_inner}
    return build_kernel("moe_round", defines, threads=ROUND_THREADS)


def list_plans(columns: int, capability: tuple[int, int], sizes: Sizes) -> Iterator[CudaCode]:
    """Lists the kernels that such a GPU launches for experts of these sizes, beside those of cuda:wgmma."""
    if capability != FIRST:
        return
    machine, hidden, inter, experts = machine_of(capability), sizes.hidden, sizes.intermediate, sizes.experts
    for name, is_up, width, rows in (("up", True, hidden, 2 * inter), ("down", False, inter, hidden)):
        for shape in dict.fromkeys(up if is_up else down for _, up, down in SHAPES[columns]):
            kernel = bf16.plan(machine, shape, is_up=is_up, columns=width, rows=rows, experts=experts)
            yield CudaCode(variant=f"{NAMES[columns]} {name} {shape}", kernel=kernel)
    for name, is_inner, width, active in (("tokens", False, hidden, sizes.active), ("inner", True, inter, 1)):
        kernel = plan_round(hidden=width, active=active, columns=columns, is_inner=is_inner)
        yield CudaCode(variant=f"{NAMES[columns]} round {name}", kernel=kernel)


def run(columns: int, x: Tensor, ids: Tensor, weights: Tensor, experts: Experts, limit: float) -> Tensor:
    """Returns y [T, H] of moe_matmul. Experts that do not fit E4M3 are computed in bf16."""
    num_experts = len(experts.down_bias)
    found = experts.e4m3_rows
    parts = torch.empty(ids.numel(), x.shape[1], dtype=x.dtype, device=x.device)
    sorting = bf16.sort(ids, weights, num_experts)
    fitting = replace(sorting, counts=sorting.counts * found.fits) if found.num_unfit else sorting
    if found.num_unfit < num_experts:
        _multiply(columns, x, ids, fitting, experts, limit, parts)
    if found.num_unfit:
        others = replace(sorting, counts=sorting.counts * (1 - found.fits))
        bf16.multiply(x, ids, others, experts, limit, parts)
    return bf16.add_parts(parts, ids, x)


def _multiply(
    columns: int, x: Tensor, ids: Tensor, sorting: Sorting, experts: Experts, limit: float, parts: Tensor
) -> None:
    """Writes the results [pairs, H] of the pairs that `sorting` counts, in FP8."""
    (tokens, hidden), active, machine = x.shape, ids.shape[1], find_machine(x.device)
    num_experts, rows = experts.gate_up_bias.shape
    inter, num_places, found = rows // 2, sorting.num_places, experts.e4m3_rows

    def empty(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=x.device)

    def rounded(width: int) -> tuple[Tensor, Tensor]:
        values = empty(width // BLOCK, num_places, columns, BLOCK, dtype=torch.uint8)
        return values, empty(num_places, dtype=torch.float32)

    up, down = choose_shapes(columns, ids.numel(), num_experts)
    sizes, grid = {"experts": num_experts}, (machine.num_sms,)
    gathered, units = rounded(hidden)
    kernel = plan_round(hidden=hidden, active=active, columns=columns, is_inner=False)
    launch(kernel, (tokens,), (x, ids, sorting.places, gathered, units, num_places), True)
    inner = empty(num_places, inter, dtype=x.dtype)
    kernel = bf16.plan(machine, up, is_up=True, columns=hidden, rows=rows, **sizes)
    of_up = (experts.gate_up_codes, experts.gate_up_scales, experts.gate_up_bias)
    after = (limit, num_places, found.gate_up_bases, units)
    launch(kernel, grid, (gathered, *sorting.tiled, *of_up, inner, *after), True, tile=up)
    gathered, units = rounded(inter)
    kernel = plan_round(hidden=inter, active=1, columns=columns, is_inner=True)
    launch(kernel, (ids.numel(),), (inner, ids, sorting.places, gathered, units, num_places), True)
    kernel = bf16.plan(machine, down, is_up=False, columns=inter, rows=hidden, **sizes)
    of_down = (experts.down_codes, experts.down_scales, experts.down_bias)
    after = (limit, num_places, found.down_bases, units)
    launch(kernel, grid, (gathered, *sorting.tiled, *of_down, parts, *after), True, tile=down)

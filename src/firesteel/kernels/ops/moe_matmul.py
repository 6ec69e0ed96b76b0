"""The expert MLP of each token: MXFP4 matmul, clamped SwiGLU, MXFP4 matmul, weighted sum.

in   MoeMatmulOperands
out  y  [T, H]  sum over a of weights[t, a] * mlp(expert ids[t, a], x[t])
     mlp = down @ swiglu(gate_up @ x + bias) + bias; rows of gate_up alternate gate, up
     swiglu = g * sigmoid(1.702 g) * (u + 1)    g = min(gate, limit)    u = clip(up, -limit, limit)
Computed in fp32, rounded once on store; `triton` and `cuda:wgmma` round each expert's result before they add them.

On SM12x `triton` multiplies mxfp8 and mxfp4 activations as such (block-scaled MMA); elsewhere it computes the same
numbers from bf16. `cuda:stream` is for up to 192 tokens (128 on SM90, 64 on GPUs with 100 KB of shared memory); it
converts bf16 activations to 14-bit integers that share a scale per 64 to 256 columns, and multiplies them exactly.
`cuda:wgmma` is for more, on SM90 with bf16 activations; `cuda:wgmma_fp8` is for fp8 ones, which no other takes, and
`cuda:wgmma_split` keeps bf16 activations as two E4M3 values each. `triton:gemv` runs for few tokens if these
cannot: before SM90, and with rounded activations; it reads each chosen expert once. `triton:gemm` is for more.
`triton_kernels` and `flashinfer` are libraries' (kernels/libraries), and read the experts in orders of their own.
"""
# mypy: disable-error-code="import-untyped,import-not-found"

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from firesteel.device import find_capability
from firesteel.formats import mxfp4
from firesteel.kernels.fixed_rows import multiply, on_cpu
from firesteel.kernels.invariant_tiles import experts_tile
from firesteel.kernels.libraries.flashinfer_moe import KINDS, moe_ready
from firesteel.kernels.libraries.triton_kernels import lacks_triton_kernels
from firesteel.kernels.op.needs import cuda_ready, hopper_ready, triton_ready
from firesteel.kernels.op.op import define_op
from firesteel.kernels.op.profile import EXPERTS, MOE_OVERHEAD, OpProfile
from firesteel.kernels.op.rows import rows_of
from firesteel.kernels.op.tolerance import bf16
from firesteel.kernels.operands.activation import FP8, is_native, lacks_native, round_activation
from firesteel.kernels.operands.fed import refuse_activation, refuse_fed
from firesteel.kernels.operands.weights import Experts
from firesteel.kernels.ops import moe_library, moe_stream
from firesteel.kernels.ops.moe_code import GEMV_TOKENS, list_code
from firesteel.kernels.ops.moe_operands import MoeMatmulOperands, list_samples, list_workloads
from firesteel.kernels.tiles.launch import MOST_ROWS_OF_GRID
from firesteel.kernels.tiles.tile_pin import AUTO, refuse_tile
from firesteel.kernels.wgmma import bf16 as wgmma_bf16
from firesteel.kernels.wgmma import e4m3

if TYPE_CHECKING:
    from firesteel.kernels.triton.mxfp4_product import Tile

ALPHA = 1.702
OTHER_ORDER = "reads the experts in the checkpoint's order, not in that of a library"
LEAST_COLUMNS = 64  # of fc1's tile: SwiGLU halves them, and a group has 32


def swiglu(x: Tensor, limit: float) -> Tensor:
    """Returns [T, I] from [T, 2I], whose columns alternate gate, up."""
    gate, up = x[..., ::2].clamp(max=limit), x[..., 1::2].clamp(-limit, limit)
    return gate * torch.sigmoid(ALPHA * gate) * (up + 1)


def _bytes(operands: MoeMatmulOperands) -> int:
    x, ids = operands.x, operands.ids
    num_experts = int(ids[ids >= 0].unique().numel())
    read = x if operands.fed is None else operands.fed
    of_tokens = read.nbytes + x.nbytes + ids.nbytes + operands.weights.nbytes
    return of_tokens + num_experts * operands.experts.expert_bytes


def _reference_accepts(operands: MoeMatmulOperands) -> str | None:
    return None if operands.tile == AUTO else f"has no tiles, and {operands.tile} is pinned"


@define_op(
    bytes=_bytes,
    tolerance=bf16(ulps=2, why="between the matmuls and before the sum: rounded to bf16, or to the next code"),
    accepts=_reference_accepts,
    keeps_choice=True,
    profile=OpProfile(
        EXPERTS,
        reads="moe_matmul",
        kernels={
            "moe_stream": "moe_matmul",
            "moe_wgmma": "moe_matmul",
            "fc1": "moe_matmul.gate_up",
            "fc2": "moe_matmul.down",
        },
        beside=dict.fromkeys(
            (
                "moe_sum",
                "moe_sum_narrow",
                "moe_place",
                "moe_gather",
                "moe_round",
                "sum_parts",
                "count_chunk",
                "place_chunk",
            ),
            MOE_OVERHEAD,
        ),
    ),
    rows=rows_of("x", "ids", "weights", "fed"),
)
def moe_matmul(operands: MoeMatmulOperands) -> Tensor:
    return _compute(operands, torch.addmm)


def _compute(operands: MoeMatmulOperands, add_product: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
    """Computes the experts one after the other; `add_product` returns bias + rows @ weight.

    Before FP8, the results of SwiGLU are rounded to the type of x: their largest value is known only when all are
    stored. The activations of experts whose weights E4M3 cannot represent are not rounded to FP8.
    """
    x, ids, activation = operands.x, operands.ids, operands.activation
    experts = operands.experts if isinstance(operands.experts, Experts) else operands.experts.unpack()
    y = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    wide = x.float()
    rounded = round_activation(wide, activation)
    exact = (experts.e4m3_rows.fits == 0).tolist() if activation == FP8 else []
    for expert in ids[ids >= 0].unique().tolist():
        rows, ranks = (ids == expert).nonzero(as_tuple=True)
        is_exact = activation == FP8 and exact[expert]
        gate_up = mxfp4.dequantize(experts.gate_up_codes[expert], experts.gate_up_scales[expert])
        given = (wide if is_exact else rounded)[rows]
        inner = swiglu(add_product(experts.gate_up_bias[expert].float(), given, gate_up.T), operands.limit)
        down = mxfp4.dequantize(experts.down_codes[expert], experts.down_scales[expert])
        if not is_exact:
            inner = round_activation(inner.to(x.dtype).float() if activation == FP8 else inner, activation)
        outer = add_product(experts.down_bias[expert].float(), inner, down.T)
        y.index_add_(0, rows, outer * operands.weights[rows, ranks, None])
    return y.to(x.dtype)


def _accepts(operands: MoeMatmulOperands) -> str | None:
    x, ids, experts, activation = operands.x, operands.ids, operands.experts, operands.activation
    if why := refuse_activation(activation):
        return why
    if not isinstance(experts, Experts):
        return OTHER_ORDER
    if x.dtype != torch.bfloat16:
        return f"wants bf16 tokens, not {x.dtype}"
    if x.shape[0] == 0:
        return "wants at least one token"
    if ids.numel() * max(x.shape[1], experts.gate_up_bias.shape[1]) >= 2**31:
        return f"counts values in 32 bits: {ids.numel()} pairs are too many"
    tensors = [x, ids, operands.weights, *(getattr(experts, part.name) for part in fields(experts))]
    if not all(tensor.is_contiguous() for tensor in tensors):
        return "wants contiguous tensors"
    capability = find_capability(x.device)
    return (
        refuse_tile(operands.tile, least_columns=LEAST_COLUMNS)
        or lacks_native(capability, activation)
        or refuse_fed(operands.fed, x, activation, is_native(capability, activation))
    )


def _accepts_few(operands: MoeMatmulOperands) -> str | None:
    if operands.x.shape[0] > GEMV_TOKENS:
        return f"is for at most {GEMV_TOKENS} tokens, not {operands.x.shape[0]}"
    return _accepts(operands)


@moe_matmul.implementation("triton:gemv", needs=triton_ready(), accepts=_accepts_few, reads_fed=True)
def triton_gemv(operands: MoeMatmulOperands) -> Tensor:
    from firesteel.kernels.triton import moe_matmul as device

    tiles = device.gemv_tiles(operands.ids.numel())
    return _run_triton(operands, tiles)


@moe_matmul.implementation("triton:gemm", needs=triton_ready(), accepts=_accepts, reads_fed=True)
def triton_gemm(operands: MoeMatmulOperands) -> Tensor:
    from firesteel.kernels.triton import moe_matmul as device

    capability = find_capability(operands.x.device)
    pairs_per_expert = operands.ids.numel() / operands.experts.down_bias.shape[0]
    tiles = device.gemm_tiles(pairs_per_expert, capability, is_native(capability, operands.activation))
    return _run_triton(operands, tiles)


def _accepts_invariant(operands: MoeMatmulOperands) -> str | None:
    if operands.tile != AUTO:
        return f"has one tile, and {operands.tile} is pinned"
    return _accepts(operands) or _refuse_tiles(operands)


def _refuse_tiles(operands: MoeMatmulOperands) -> str | None:
    """Refuses more tiles of rows than a grid has."""
    from firesteel.kernels.triton.moe_sort import max_tiles

    num_pairs, rows = operands.ids.numel(), experts_tile(native=False).rows  # the same for all activations
    if max_tiles(num_pairs, operands.experts.down_bias.shape[0], rows) > MOST_ROWS_OF_GRID:
        return f"takes up to {MOST_ROWS_OF_GRID} tiles of {rows} rows: {num_pairs} pairs are too many"
    return None


@moe_matmul.implementation(
    "triton:invariant", needs=triton_ready(), accepts=_accepts_invariant, reads_fed=True, is_row_invariant=True
)
def triton_invariant(operands: MoeMatmulOperands) -> Tensor:
    """Computes any number of tokens with one tile, and adds a token's experts in the order of their ranks."""
    tile = experts_tile(is_native(find_capability(operands.x.device), operands.activation))
    return _run_triton(operands, (tile, tile))


@moe_matmul.implementation("torch:invariant", needs=on_cpu, accepts=_reference_accepts, is_row_invariant=True)
def torch_invariant(operands: MoeMatmulOperands) -> Tensor:
    """Multiplies as many rows at a time as every other call; adds experts in the order of their ids."""
    return _compute(operands, lambda bias, rows, weight: multiply(rows, weight.T) + bias)


def _run_triton(operands: MoeMatmulOperands, tiles: tuple[Tile, Tile]) -> Tensor:
    """Runs both matmuls with these tiles, unless one is pinned."""
    from firesteel.kernels.triton import moe_matmul as device
    from firesteel.kernels.triton.mxfp4_product import store

    x, activation, experts = operands.x, operands.activation, operands.experts
    assert isinstance(experts, Experts)
    capability = find_capability(x.device)
    fed = operands.fed or store(x, activation, is_native(capability, activation))
    pinned = device.pin(tiles, operands.tile, capability)
    return device.run(fed, operands.ids, operands.weights, experts, operands.limit, pinned)


def _accepts_untiled(refuse: Callable[..., str | None], operands: MoeMatmulOperands) -> str | None:
    """Refuses all that no kernel in CUDA C++ takes, and then what `refuse` does."""
    if operands.tile != AUTO:
        return f"has no tiles, and {operands.tile} is pinned"
    if not isinstance(operands.experts, Experts):
        return OTHER_ORDER
    return refuse(operands.x, operands.ids, operands.weights, operands.experts, operands.activation)


@moe_matmul.implementation(
    "cuda:stream", needs=cuda_ready(), accepts=functools.partial(_accepts_untiled, moe_stream.refuse)
)
def cuda_stream(operands: MoeMatmulOperands) -> Tensor:
    assert isinstance(operands.experts, Experts)
    return moe_stream.run(operands.x, operands.ids, operands.weights, operands.experts, operands.limit)


@moe_matmul.implementation(
    "cuda:wgmma", needs=hopper_ready(), accepts=functools.partial(_accepts_untiled, wgmma_bf16.refuse)
)
def cuda_wgmma(operands: MoeMatmulOperands) -> Tensor:
    assert isinstance(operands.experts, Experts)
    return wgmma_bf16.run(operands.x, operands.ids, operands.weights, operands.experts, operands.limit)


def _run_e4m3(columns: int, operands: MoeMatmulOperands) -> Tensor:
    x, ids, weights, experts = operands.x, operands.ids, operands.weights, operands.experts
    assert isinstance(experts, Experts)
    return e4m3.run(columns, x, ids, weights, experts, operands.limit)


for columns, name in e4m3.NAMES.items():
    moe_matmul.implementation(
        name,
        needs=hopper_ready(),
        accepts=functools.partial(_accepts_untiled, functools.partial(e4m3.refuse, columns)),
        tolerance=e4m3.TOLERANCES[columns],
    )(functools.partial(_run_e4m3, columns))


@moe_matmul.implementation(
    "triton_kernels",
    needs=lacks_triton_kernels,
    accepts=moe_library.refuse,
    pack=moe_library.reorder("triton_kernels"),
)
def triton_kernels(operands: MoeMatmulOperands) -> Tensor:
    return moe_library.run(operands, ALPHA)


for kind in KINDS:
    moe_matmul.implementation(
        f"flashinfer:{kind}",
        needs=moe_ready(kind),
        accepts=functools.partial(moe_library.refuse_kind, kind),
        pack=moe_library.reorder(f"flashinfer:{kind}"),
        tolerance=moe_library.TOLERANCES.get(kind),
    )(functools.partial(moe_library.run, alpha=ALPHA))


moe_matmul.refused_names["trtllm"] = (
    "is a function of FlashInfer, which refuses GPUs other than SM10x and SM12x, and is not an implementation"
)
moe_matmul.prefer("cuda:stream", "cuda:wgmma", "triton:gemv", "triton:gemm", "cuda:wgmma_fp8")  # the last: fp8 only
moe_matmul.device_code(list_code)
moe_matmul.samples(list_samples)
moe_matmul.workloads(list_workloads)

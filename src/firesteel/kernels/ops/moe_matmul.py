"""The expert MLP of each token: MXFP4 matmul, clamped SwiGLU, MXFP4 matmul, weighted sum.

in   x        [T, H]
     ids      [T, A] int64   experts of each token; a negative one adds nothing: padding has such
     weights  [T, A] fp32
     experts  packed weights (Experts)
     limit    of the clamp
     activation  bf16, or what both matmuls' activations are rounded to: mxfp8 or mxfp4, by the OCP rule
     tile     auto, or ROWSxCOLUMNS: pairs times rows of the weight that a program computes
     fed      x as rms_norm_fed stored it for `activation`, or None: `triton` stores it first, to the same bits
out  y        [T, H]         sum over a of weights[t, a] * mlp(expert ids[t, a], x[t])
     mlp = down @ swiglu(gate_up @ x + bias) + bias; rows of gate_up alternate gate, up
     swiglu = g * sigmoid(1.702 g) * (u + 1)    g = min(gate, limit)    u = clip(up, -limit, limit)
Computed in fp32, rounded once on store; `triton` rounds what each expert gives before it adds them.

On SM12x `triton` multiplies mxfp8 and mxfp4 activations as such (block-scaled MMA); elsewhere it computes the same
numbers from bf16. `gemv` is for few tokens: it reads each chosen expert once; `gemm` for many. `cuda:stream` is for
up to 192 tokens (64 on GPUs with 100 KB of shared memory); it cuts bf16 activations to whole numbers of 14 bits, 64
to 256 columns together, and multiplies them exactly.
"""
# mypy: disable-error-code="import-untyped,import-not-found"

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from firesteel.device import find_capability
from firesteel.formats import mxfp4
from firesteel.kernels.op.needs import cuda_ready, triton_ready
from firesteel.kernels.op.op import CudaCode, DeviceCode, Sample, define_op
from firesteel.kernels.op.profile import EXPERTS, OpProfile
from firesteel.kernels.op.tolerance import bf16
from firesteel.kernels.operands.activation import ACTIVATIONS, is_native, lacks_native, round_activation
from firesteel.kernels.operands.fed import Fed, refuse_activation, refuse_fed
from firesteel.kernels.operands.shapes import ModelShapes, WorkloadPart
from firesteel.kernels.operands.weights import Experts, random_experts
from firesteel.kernels.ops import moe_stream
from firesteel.kernels.ops.linear import store_code
from firesteel.kernels.tiles.tile_pin import AUTO, refuse_tile

if TYPE_CHECKING:
    from firesteel.kernels.triton.mxfp4_product import Tile

ALPHA = 1.702
LEAST_COLUMNS = 64  # of fc1's tile: half as many values come out, in groups of 32
# types of what both matmuls read beside activations
READ = dict.fromkeys(("order", "ends", "tile_experts", "tile_firsts"), "*i32") | {
    "codes": "*u8", "scales": "*u8", "bias": "*bf16",
}  # fmt: skip
GEMV_TOKENS = 64  # beyond, an expert has so many tokens that larger tiles pay


def swiglu(x: Tensor, limit: float) -> Tensor:
    """[T, I] from [T, 2I], columns alternating gate, up."""
    gate, up = x[..., ::2].clamp(max=limit), x[..., 1::2].clamp(-limit, limit)
    return gate * torch.sigmoid(ALPHA * gate) * (up + 1)


def _bytes(
    x: Tensor, ids: Tensor, weights: Tensor, experts: Experts, limit: float, activation: str = "bf16",
    tile: str = "auto", fed: Fed | None = None,
) -> int:  # fmt: skip
    chosen = int(ids[ids >= 0].unique().numel())
    read = x if fed is None else fed
    return read.nbytes + x.nbytes + ids.nbytes + weights.nbytes + chosen * experts.expert_bytes


def _reference_accepts(
    x: Tensor, ids: Tensor, weights: Tensor, experts: Experts, limit: float, activation: str = "bf16",
    tile: str = "auto", fed: Fed | None = None,
) -> str | None:  # fmt: skip
    return None if tile == "auto" else f"has no tiles, and {tile} is pinned"


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
            "fc1": "moe_matmul.gate_up",
            "fc2": "moe_matmul.down",
            "moe_sum": "",
            "sum_parts": "",
            "count_chunk": "",
            "place_chunk": "",
        },
    ),
)
def moe_matmul(
    x: Tensor, ids: Tensor, weights: Tensor, experts: Experts, limit: float, activation: str = "bf16",
    tile: str = "auto", fed: Fed | None = None,
) -> Tensor:  # fmt: skip
    y = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    wide = round_activation(x.float(), activation)
    for expert in ids[ids >= 0].unique().tolist():
        rows, ranks = (ids == expert).nonzero(as_tuple=True)
        gate_up = mxfp4.dequantize(experts.gate_up_codes[expert], experts.gate_up_scales[expert])
        inner = swiglu(torch.addmm(experts.gate_up_bias[expert].float(), wide[rows], gate_up.T), limit)
        down = mxfp4.dequantize(experts.down_codes[expert], experts.down_scales[expert])
        outer = torch.addmm(experts.down_bias[expert].float(), round_activation(inner, activation), down.T)
        y.index_add_(0, rows, outer * weights[rows, ranks, None])
    return y.to(x.dtype)


def _accepts(
    x: Tensor, ids: Tensor, weights: Tensor, experts: Experts, limit: float, activation: str = "bf16",
    tile: str = "auto", fed: Fed | None = None,
) -> str | None:  # fmt: skip
    if why := refuse_activation(activation):
        return why
    if x.dtype != torch.bfloat16:
        return f"wants bf16 tokens, not {x.dtype}"
    if x.shape[0] == 0:
        return "wants at least one token"
    if ids.numel() * max(x.shape[1], experts.gate_up_bias.shape[1]) >= 2**31:
        return f"counts values in 32 bits: {ids.numel()} pairs are too many"
    tensors = [x, ids, weights, *(getattr(experts, part.name) for part in fields(experts))]
    if not all(tensor.is_contiguous() for tensor in tensors):
        return "wants contiguous tensors"
    capability = find_capability(x.device)
    return (
        refuse_tile(tile, least_columns=LEAST_COLUMNS)
        or lacks_native(capability, activation)
        or refuse_fed(fed, x, activation, is_native(capability, activation))
    )


def _accepts_few(
    x: Tensor, ids: Tensor, weights: Tensor, experts: Experts, limit: float, activation: str = "bf16",
    tile: str = "auto", fed: Fed | None = None,
) -> str | None:  # fmt: skip
    if x.shape[0] > GEMV_TOKENS:
        return f"is for at most {GEMV_TOKENS} tokens, not {x.shape[0]}"
    return _accepts(x, ids, weights, experts, limit, activation, tile, fed)


@moe_matmul.implementation("triton:gemv", needs=triton_ready(), accepts=_accepts_few, reads_fed=True)
def triton_gemv(
    x: Tensor, ids: Tensor, weights: Tensor, experts: Experts, limit: float, activation: str = "bf16",
    tile: str = "auto", fed: Fed | None = None,
) -> Tensor:  # fmt: skip
    from firesteel.kernels.triton import moe_matmul as device
    from firesteel.kernels.triton.mxfp4_product import store

    capability = find_capability(x.device)
    fed = fed or store(x, activation, is_native(capability, activation))
    tiles = device.pin(device.gemv_tiles(ids.numel()), tile, capability)
    return device.run(fed, ids, weights, experts, limit, tiles)


@moe_matmul.implementation("triton:gemm", needs=triton_ready(), accepts=_accepts, reads_fed=True)
def triton_gemm(
    x: Tensor, ids: Tensor, weights: Tensor, experts: Experts, limit: float, activation: str = "bf16",
    tile: str = "auto", fed: Fed | None = None,
) -> Tensor:  # fmt: skip
    from firesteel.kernels.triton import moe_matmul as device
    from firesteel.kernels.triton.mxfp4_product import store

    capability = find_capability(x.device)
    native, pairs_per_expert = is_native(capability, activation), ids.numel() / experts.down_bias.shape[0]
    tiles = device.pin(device.gemm_tiles(pairs_per_expert, capability, native), tile, capability)
    return device.run(fed or store(x, activation, native), ids, weights, experts, limit, tiles)


def _accepts_streamed(
    x: Tensor, ids: Tensor, weights: Tensor, experts: Experts, limit: float, activation: str = "bf16",
    tile: str = "auto", fed: Fed | None = None,
) -> str | None:  # fmt: skip
    if tile != "auto":
        return f"has no tiles, and {tile} is pinned"
    return moe_stream.refuse(x, ids, weights, experts, activation)


@moe_matmul.implementation("cuda:stream", needs=cuda_ready(), accepts=_accepts_streamed)
def cuda_stream(
    x: Tensor, ids: Tensor, weights: Tensor, experts: Experts, limit: float, activation: str = "bf16",
    tile: str = "auto", fed: Fed | None = None,
) -> Tensor:  # fmt: skip
    return moe_stream.run(x, ids, weights, experts, limit)


moe_matmul.prefer("cuda:stream", "triton:gemv", "triton:gemm")


@moe_matmul.device_code
def device_code(capability: tuple[int, int]) -> Iterator[DeviceCode | CudaCode]:
    """At the sizes of gpt-oss-120b, every tile that some number of pairs picks."""
    from firesteel.kernels.stream.shapes import GPT_OSS
    from firesteel.kernels.triton import moe_matmul as device

    for way, activation in itertools.product(("gemv", "gemm"), ACTIVATIONS):
        native = is_native(capability, activation)
        ups, downs = zip(*_tiles(way, capability, native), strict=True)
        variant = f"triton:{way} {activation}"
        yield from (_fc1_code(f"{variant} fc1 {tile}", tile, activation, native) for tile in dict.fromkeys(ups))
        yield from (_fc2_code(f"{variant} fc2 {tile}", tile, activation, native) for tile in dict.fromkeys(downs))
    yield from _sort_code()
    yield from (store_code("triton:gemm", one, is_native(capability, one), 2880) for one in ACTIVATIONS)
    yield DeviceCode(
        variant="triton:gemm sum", kernel=device.sum_parts,
        signature={"parts": "*bf16", "ids": "*i64", "y": "*bf16"},
        constants={"A": 4, "H": 2880, "COLUMNS": device.SUM_COLUMNS},
    )  # fmt: skip
    yield from moe_stream.list_plans(capability, GPT_OSS)


def _tiles(way: str, capability: tuple[int, int], native: bool) -> list[tuple[Tile, Tile]]:
    """Of fc1 and fc2, for few pairs to many."""
    from firesteel.kernels.triton import moe_matmul as device

    if way == "gemv":
        return [device.gemv_tiles(pairs) for pairs in (*device.NARROW_PAIRS, 4 * GEMV_TOKENS)]
    return [device.gemm_tiles(pairs, capability, native) for pairs in (*device.MOST_PAIRS, float("inf"))]


def _sort_code() -> Iterator[DeviceCode]:
    from firesteel.kernels.triton import moe_sort

    places = dict.fromkeys(("order", "ends", "tile_experts", "tile_firsts"), "*i32")
    sizes = dict.fromkeys(("num_pairs", "num_chunks", "num_tiles", "rows"), "i32")
    yield DeviceCode(
        variant="triton:gemv sort", kernel=moe_sort.place_chunk, signature={"ids": "*i64", **places, **sizes},
        constants={"counts": None, "E": 128, "EXPERTS": 128, "CHUNK": 16}, num_warps=8,
    )  # fmt: skip
    yield DeviceCode(
        variant="triton:gemm sort", kernel=moe_sort.place_chunk,
        signature={"ids": "*i64", "counts": "*i32", **places, **sizes},
        constants={"E": 128, "EXPERTS": 128, "CHUNK": moe_sort.MAX_CHUNK}, num_warps=8,
    )  # fmt: skip
    yield DeviceCode(
        variant="triton:gemm count", kernel=moe_sort.count_chunk,
        signature={"ids": "*i64", "counts": "*i32", "num_pairs": "i32"},
        constants={"EXPERTS": 128, "CHUNK": moe_sort.MAX_CHUNK},
    )  # fmt: skip


def _fc1_code(variant: str, tile: Tile, activation: str, native: bool) -> DeviceCode:
    from firesteel.kernels.triton import moe_matmul as device

    kind, given, absent = _stored(native, "x_scales", "inner_scales")
    sizes = {"A": 4, "H": 2880, "INTER": 2880, "FORMAT": activation, "NATIVE": native}
    return DeviceCode(
        variant=variant, kernel=device.fc1,
        signature={"x": kind, **READ, "inner": kind, **given, "limit": "fp32"},
        constants={**absent, **sizes, **tile.constants, **tile.narrower},
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


def _fc2_code(variant: str, tile: Tile, activation: str, native: bool) -> DeviceCode:
    from firesteel.kernels.triton import moe_matmul as device

    kind, given, absent = _stored(native, "inner_scales")
    sizes = {"H": 2880, "INTER": 2880, "STORED": activation if native else "bf16"}
    return DeviceCode(
        variant=variant, kernel=device.fc2,
        signature={"inner": kind, **given, **READ, "weights": "*fp32", "parts": "*bf16"},
        constants={**absent, **sizes, **tile.constants, **tile.narrower},
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


def _stored(native: bool, *scales: str) -> tuple[str, dict[str, str], dict[str, None]]:
    """Types of activations and of their scales, and the scales that there are none of."""
    return ("*u8", dict.fromkeys(scales, "*u8"), {}) if native else ("*bf16", {}, dict.fromkeys(scales))


@moe_matmul.samples
def samples(device: torch.device) -> Iterator[Sample]:
    """The small ones with every activation."""
    generator = torch.Generator(device).manual_seed(1)
    for tokens, num_experts, hidden, inter, activations in (
        (1, 8, 2880, 2880, ("bf16",)), (3, 32, 96, 160, ACTIVATIONS), (65, 5, 160, 96, ACTIVATIONS),
    ):  # fmt: skip
        experts = random_experts(num_experts, hidden, inter, generator)
        x = torch.randn(tokens, hidden, device=device, generator=generator).bfloat16()
        scores = torch.rand(tokens, num_experts, device=device, generator=generator)
        chosen, ids = scores.topk(4)
        args, label = (x, ids, chosen.softmax(-1), experts, 7.0), f"T={tokens} E={num_experts} {hidden}x{inter}"
        yield from (Sample(f"{label} {one}", (*args, one)) for one in activations)
        if tokens > 1:
            padded, without = x.clone(), ids.clone()
            padded[-2:], without[-2:] = float("nan"), -1
            yield Sample(f"{label} bf16, 2 of padding", (padded, without, *args[2:], "bf16"))


@moe_matmul.workloads
def workloads(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    """Yields tokens that are spread evenly over the experts at random."""
    spec = shapes.spec

    def draw() -> tuple[Any, ...]:
        x, routing = shapes.normal(m, spec.hidden_size), shapes.routing(m)
        fed = shapes.fed(x, activation)
        return x, *routing, shapes.next_experts(), spec.swiglu_limit, activation, AUTO, fed

    flops = 6.0 * m * spec.num_active * spec.hidden_size * spec.intermediate_size
    yield WorkloadPart("", flops, shapes.expert_copies * shapes.experts_bytes, draw)

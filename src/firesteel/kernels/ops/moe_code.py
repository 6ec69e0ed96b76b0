"""Device code that moe_matmul launches at the shapes of gpt-oss-120b, for proofs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from firesteel.kernels.invariant_tiles import experts_tile
from firesteel.kernels.op.device_code import CudaCode, DeviceCode
from firesteel.kernels.operands.activation import ACTIVATIONS, is_native
from firesteel.kernels.ops import moe_stream
from firesteel.kernels.ops.linear_code import store_code
from firesteel.kernels.wgmma import bf16, e4m3

if TYPE_CHECKING:
    from firesteel.kernels.triton.mxfp4_product import Tile

# types of the arguments that both matmuls read beside activations
READ = dict.fromkeys(("order", "ends", "tile_experts", "tile_firsts"), "*i32") | {
    "codes": "*u8",
    "scales": "*u8",
    "bias": "*bf16",
}
GEMV_TOKENS = 64  # with more, an expert has enough tokens for larger tiles


def list_code(capability: tuple[int, int]) -> Iterator[DeviceCode | CudaCode]:
    """Lists every tile that some number of pairs picks, at the sizes of gpt-oss-120b."""
    from firesteel.kernels.stream.shapes import GPT_OSS
    from firesteel.kernels.triton.moe_down import SUM_COLUMNS, sum_parts

    for way, activation in itertools.product(("gemv", "gemm", "invariant"), ACTIVATIONS):
        native = is_native(capability, activation)
        ups, downs = zip(*_tiles(way, capability, native), strict=True)
        variant = f"triton:{way} {activation}"
        yield from (_fc1_code(f"{variant} fc1 {tile}", tile, activation, native) for tile in dict.fromkeys(ups))
        yield from (_fc2_code(f"{variant} fc2 {tile}", tile, activation, native) for tile in dict.fromkeys(downs))
    yield from _sort_code()
    for activation in ACTIVATIONS:
        yield store_code("triton:gemm", activation, is_native(capability, activation), 2880)
    yield DeviceCode(
        variant="triton:gemm sum",
        kernel=sum_parts,
        signature={"parts": "*bf16", "ids": "*i64", "y": "*bf16"},
        constants={"A": 4, "H": 2880, "COLUMNS": SUM_COLUMNS},
    )
    yield from moe_stream.list_plans(capability, GPT_OSS)
    yield from bf16.list_plans(capability, GPT_OSS)
    for columns in e4m3.NAMES:
        yield from e4m3.list_plans(columns, capability, GPT_OSS)


def _tiles(way: str, capability: tuple[int, int], native: bool) -> list[tuple[Tile, Tile]]:
    """Lists the tiles of fc1 and fc2, from few pairs to many."""
    from firesteel.kernels.triton import moe_matmul as device

    if way == "gemv":
        return [device.gemv_tiles(pairs) for pairs in (*device.NARROW_PAIRS, 4 * GEMV_TOKENS)]
    if way == "invariant":
        return [(experts_tile(native), experts_tile(native))]
    return [device.gemm_tiles(pairs, capability, native) for pairs in (*device.MOST_PAIRS, float("inf"))]


def _sort_code() -> Iterator[DeviceCode]:
    from firesteel.kernels.triton import moe_sort

    places = dict.fromkeys(("order", "ends", "tile_experts", "tile_firsts"), "*i32")
    sizes = dict.fromkeys(("num_pairs", "num_chunks", "num_tiles", "rows"), "i32")
    yield DeviceCode(
        variant="triton:gemv sort",
        kernel=moe_sort.place_chunk,
        signature={"ids": "*i64", **places, **sizes},
        constants={"counts": None, "E": 128, "EXPERTS": 128, "CHUNK": 16},
        num_warps=8,
    )
    yield DeviceCode(
        variant="triton:gemm sort",
        kernel=moe_sort.place_chunk,
        signature={"ids": "*i64", "counts": "*i32", **places, **sizes},
        constants={"E": 128, "EXPERTS": 128, "CHUNK": moe_sort.MAX_CHUNK},
        num_warps=8,
    )
    yield DeviceCode(
        variant="triton:gemm count",
        kernel=moe_sort.count_chunk,
        signature={"ids": "*i64", "counts": "*i32", "num_pairs": "i32"},
        constants={"EXPERTS": 128, "CHUNK": moe_sort.MAX_CHUNK},
    )


def _fc1_code(variant: str, tile: Tile, activation: str, native: bool) -> DeviceCode:
    from firesteel.kernels.triton.moe_up import fc1

    kind, given, absent = _stored(native, "x_scales", "inner_scales")
    sizes = {"A": 4, "H": 2880, "INTER": 2880, "FORMAT": activation, "NATIVE": native}
    return DeviceCode(
        variant=variant,
        kernel=fc1,
        signature={"x": kind, **READ, "inner": kind, **given, "limit": "fp32"},
        constants={**absent, **sizes, **tile.constants, **tile.narrower},
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def _fc2_code(variant: str, tile: Tile, activation: str, native: bool) -> DeviceCode:
    from firesteel.kernels.triton.moe_down import fc2

    kind, given, absent = _stored(native, "inner_scales")
    sizes = {"H": 2880, "INTER": 2880, "STORED": activation if native else "bf16"}
    return DeviceCode(
        variant=variant,
        kernel=fc2,
        signature={"inner": kind, **given, **READ, "weights": "*fp32", "parts": "*bf16"},
        constants={**absent, **sizes, **tile.constants, **tile.narrower},
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def _stored(native: bool, *scales: str) -> tuple[str, dict[str, str], dict[str, None]]:
    """Returns the types of activations and of their scales, and None for each of the scales that are absent."""
    return ("*u8", dict.fromkeys(scales, "*u8"), {}) if native else ("*bf16", {}, dict.fromkeys(scales))

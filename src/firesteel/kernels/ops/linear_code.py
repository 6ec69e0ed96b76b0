"""Device code that linear launches at the shapes of gpt-oss, for proofs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from firesteel.kernels.invariant_tiles import dense_tile, packed_tile
from firesteel.kernels.op.device_code import DeviceCode
from firesteel.kernels.operands.activation import ACTIVATIONS, is_native

if TYPE_CHECKING:
    from firesteel.kernels.triton.linear import LinearTile
    from firesteel.kernels.triton.mxfp4_product import Tile

LM_HEAD = (201088, 2880)  # has no bias
SHAPES = ((5120, 2880), (2880, 4096), LM_HEAD)  # of qkv, o and lm_head
VECTOR_TOKENS = 8
MOST_TOKENS = 16384  # in a step


def list_code(capability: tuple[int, int]) -> Iterator[DeviceCode]:
    """Lists vectors of every shape, and tiles of qkv's shape and of lm_head's."""
    from firesteel.kernels.triton import linear as code

    signature = {"x": "*bf16", "weight": "*bf16", "y": "*bf16", "x_stride": "i32:16", "weight_stride": "i32:16"}
    for rows, columns in SHAPES:
        given, absent = _bias((rows, columns))
        sizes = {"M": rows, "N": columns, "ROWS": code.vector_rows(rows), "COLUMNS": code.VECTOR_COLUMNS}
        yield DeviceCode(
            variant=f"triton:gemv T=1 {rows}x{columns}",
            kernel=code.vector_kernel,
            signature=signature | given,
            constants=absent | sizes,
            num_warps=code.VECTOR_WARPS,
        )
    for (rows, columns), tiles in ((SHAPES[0], code.FLAT_TILES), (LM_HEAD, code.TALL_TILES)):
        given, absent = _bias((rows, columns))
        for tile in tiles:
            sizes = {"M": rows, "N": columns, "TOKENS": tile.tokens, "ROWS": tile.rows, "COLUMNS": tile.columns}
            names = ("triton:gemv", "triton:gemm") if tile.tokens <= 2 * VECTOR_TOKENS else ("triton:gemm",)
            for name in names:
                yield DeviceCode(
                    variant=f"{name} {rows}x{columns} {tile.tokens}x{tile.rows}x{tile.columns}",
                    kernel=code.tile_kernel,
                    signature={**signature, **given, "T": "i32"},
                    constants=absent | sizes,
                    num_warps=tile.num_warps,
                    num_stages=tile.num_stages,
                )
    for rows, columns in SHAPES:
        given, absent = _bias((rows, columns))
        yield tile_code("triton:invariant", dense_tile(rows), (rows, columns), signature | given, absent)
    yield from _mxfp4_code(capability)


def tile_code(
    name: str, tile: LinearTile, shape: tuple[int, int], signature: dict[str, str], absent: dict[str, None]
) -> DeviceCode:
    """Returns the device code of one tile of a bf16 weight of this shape."""
    from firesteel.kernels.triton.linear import tile_kernel

    rows, columns = shape
    sizes = {"M": rows, "N": columns, "TOKENS": tile.tokens, "ROWS": tile.rows, "COLUMNS": tile.columns}
    return DeviceCode(
        variant=f"{name} {rows}x{columns} {tile.tokens}x{tile.rows}x{tile.columns}",
        kernel=tile_kernel,
        signature={**signature, "T": "i32"},
        constants=absent | sizes,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


def _bias(shape: tuple[int, int]) -> tuple[dict[str, str], dict[str, None]]:
    """Returns the type of the bias, and the constant that says that there is none; one of the two is empty."""
    return ({}, {"bias": None}) if shape == LM_HEAD else ({"bias": "*bf16"}, {})


def _mxfp4_code(capability: tuple[int, int]) -> Iterator[DeviceCode]:
    """Lists every tile that some number of tokens picks, with the first of the shapes that share its code."""
    from firesteel.kernels.triton import mxfp4_linear as device

    signature = {"codes": "*u8", "scales": "*u8", "y": "*bf16", "num_tokens": "i32"}
    for activation in ACTIVATIONS:
        native = is_native(capability, activation)
        x = {"x": "*u8", "x_scales": "*u8"} if native else {"x": "*bf16"}
        chosen = [("triton:gemm", shape, tile) for shape, tile in _tiles(capability, native)]
        pinned = [("triton:invariant", shape, packed_tile(native)) for shape in SHAPES]
        for name, (rows, columns), tile in (*chosen, *pinned):
            given, absent = _bias((rows, columns))
            sizes = {"M": rows, "K": columns, "STORED": activation if native else "bf16", **tile.constants}
            yield DeviceCode(
                variant=f"{name} mxfp4-weight {activation} {rows}x{columns} {tile}",
                kernel=device.mxfp4_linear_kernel,
                signature={**x, **signature, **given},
                constants=absent | (sizes if native else {"x_scales": None, **sizes}),
                num_warps=tile.warps,
                num_stages=tile.stages,
            )
        for columns in dict.fromkeys(columns for _, columns in SHAPES):
            yield store_code("triton:gemm mxfp4-weight", activation, native, columns)


def _tiles(capability: tuple[int, int], native: bool) -> Iterator[tuple[tuple[int, int], Tile]]:
    """Yields (shape, tile) for numbers of tokens that are powers of two.

    Shapes share device code unless they differ in having a bias or a tail of columns.
    """
    from firesteel.kernels.triton import mxfp4_linear as device

    listed = set()
    for shape, power in itertools.product(SHAPES, range(MOST_TOKENS.bit_length())):
        tile = device.pick_tile(1 << power, shape[0], capability, native)
        key = tile, shape[1] % tile.depth == 0, shape == LM_HEAD
        if key not in listed:
            listed.add(key)
            yield shape, tile


def store_code(name: str, activation: str, native: bool, columns: int) -> DeviceCode:
    """Returns device code that stores rows for which no `fed` was given."""
    from firesteel.kernels.triton.mxfp import store_rows
    from firesteel.kernels.triton.mxfp4_product import STORE_COLUMNS, STORE_ROWS

    stored = {"values": "*u8", "scales": "*u8"} if native else {"values": "*bf16"}
    sizes = {"K": columns, "ROWS": STORE_ROWS, "COLUMNS": STORE_COLUMNS}
    constants = {"FORMAT": activation, "NATIVE": native, **sizes}
    return DeviceCode(
        variant=f"{name} store {activation} K={columns}",
        kernel=store_rows,
        signature={"x": "*bf16", "num_rows": "i32", **stored},
        constants=constants if native else {"scales": None, **constants},
    )

"""The pinned tiles of row-invariant matmuls on a GPU, and their launches.

A tile decides which matrix instruction multiplies and how many columns a step adds. One tile per op and format,
whatever the number of rows, gives every row one order of summation: tiles of K in ascending order, added in fp32 by
one program. Narrower tiles for the last rows would be other instructions, so there are none. The sizes lie between
those of decoding and those of prompts; which is fastest in sum is a measurement on the GPU.
"""
# mypy: disable-error-code="import-untyped,import-not-found"

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from firesteel.device import find_capability
from firesteel.kernels.operands.activation import is_native
from firesteel.kernels.operands.fed import Fed
from firesteel.kernels.operands.weights import Mxfp4Weight

if TYPE_CHECKING:
    from firesteel.kernels.triton.linear import LinearTile
    from firesteel.kernels.triton.mxfp4_product import Tile


def dense_tile(num_rows: int) -> LinearTile:
    """Returns the tile of bf16 weights with `num_rows` rows: a property of the weight, not of the call."""
    from firesteel.kernels.triton import linear as device

    if num_rows >= device.TALL_ROWS:
        return device.TALL_TILES[1]
    return device.FLAT_TILES[2]


def router_tile() -> LinearTile:
    """Returns the tile of the router's matrix, which is so small that narrow tiles read it from L2."""
    from firesteel.kernels.triton.linear import FEWEST

    return FEWEST


def packed_tile(native: bool) -> Tile:
    """Returns the tile of dense MXFP4 weights; `native` activations take a byte per value, or half of one."""
    from firesteel.kernels.triton.mxfp4_product import Tile

    if native:
        return Tile(rows=32, columns=64, depth=128, warps=4, stages=3)
    return Tile(rows=32, columns=64, depth=64, warps=4, stages=4)


def experts_tile(native: bool) -> Tile:
    """Returns the tile of both matmuls of the experts, without narrower ones for an expert's last rows."""
    from firesteel.kernels.triton.mxfp4_product import Tile

    if native:
        return Tile(rows=32, columns=128, depth=128, warps=4, stages=3)
    return Tile(rows=32, columns=128, depth=64, warps=4, stages=4)


def multiply_dense(x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, tile: LinearTile) -> Tensor:
    """Writes the contiguous `y` [T, M], of any float type, and returns it."""
    from firesteel.kernels.triton.linear import launch_tiles

    if x.shape[0]:
        launch_tiles(x, weight, bias, y, tile)
    return y


def multiply_packed(
    x: Tensor, fed: Fed | None, weight: Mxfp4Weight, bias: Tensor | None, activation: str
) -> Tensor:
    """Returns [T, M] bf16 from x, or from `fed` where its producer has stored it."""
    from firesteel.kernels.triton import mxfp4_linear as device
    from firesteel.kernels.triton.mxfp4_product import store

    native = is_native(find_capability(x.device), activation)
    return device.run(fed or store(x, activation, native), weight.codes, weight.scales, bias, packed_tile(native))


def choose_experts(logits: Tensor, active: int, num_tokens: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns ids and weights [T, A] of the most likely experts of each row of logits [T, E]."""
    from firesteel.kernels.triton.route import launch_choice

    tokens = logits.shape[0]
    ids = torch.empty(tokens, active, dtype=torch.int64, device=logits.device)
    weights = torch.empty(tokens, active, dtype=torch.float32, device=logits.device)
    launch_choice(logits, ids, weights, num_tokens)
    return ids, weights

"""The order of columns in which kernels multiply activations by MXFP4 weights, as torch sees it; knows no kernel.

Columns of a product may come in any order, if both sides keep to it. In this one, what a lane feeds to the matrix
unit comes from four adjacent bytes of an MXFP4 row. Column 8t + 4p + 2o + n of a group is nibble n of byte
4t + 2p + o; it is moved to where n, o, t, p (bf16) or n, t, p, o (mxfp8) count up. mxfp4 stays as it is.
"""

from __future__ import annotations

from torch import Tensor

from firesteel.formats import group

PARTS = (4, 2, 2, 2)  # t p o n
ORDERS = {"bf16": (3, 2, 0, 1), "mxfp8": (3, 0, 1, 2)}  # stored as -> which part counts slowest, ..., fastest


def pack(x: Tensor, stored: str) -> Tensor:
    """x [.., K] of values or codes with each group's columns in the order of the product; of mxfp4, x itself."""
    return x if stored == "mxfp4" else _permute_groups(x, PARTS, ORDERS[stored])


def unpack(fed: Tensor, stored: str) -> Tensor:
    """What `pack` was given, bit for bit."""
    if stored == "mxfp4":
        return fed
    order = ORDERS[stored]
    return _permute_groups(fed, tuple(PARTS[part] for part in order), tuple(map(order.index, range(len(order)))))


def _permute_groups(x: Tensor, sizes: tuple[int, ...], order: tuple[int, ...]) -> Tensor:
    columns = x.shape[-1]
    if columns % group.SIZE:
        raise ValueError(f"K = {columns} is not a multiple of the group size {group.SIZE}")
    parts = x.reshape(*x.shape[:-1], columns // group.SIZE, *sizes)
    first = parts.dim() - len(sizes)
    return parts.permute(*range(first), *(first + part for part in order)).reshape(x.shape)

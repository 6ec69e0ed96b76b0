"""Column order in which kernels multiply activations by MXFP4 weights, in plain torch.

The columns of a product may be in any order, as long as both operands use the same. With this order, the values
that a lane feeds to the matrix unit come from four adjacent bytes of an MXFP4 row. Column 8t + 4p + 2o + n of a
group is nibble n of byte 4t + 2p + o; its new index counts n slowest, then o, t, p (bf16) or t, p, o (mxfp8).
mxfp4 activations keep their order.
"""

from __future__ import annotations

from torch import Tensor

from firesteel.formats import group

PARTS = (4, 2, 2, 2)  # t p o n
ORDERS = {"bf16": (3, 2, 0, 1), "mxfp8": (3, 0, 1, 2)}  # storage format -> indices into PARTS, slowest first


def pack(x: Tensor, stored: str) -> Tensor:
    """Returns x [.., K], values or codes, with the columns of each group in product order; mxfp4 stays as it is."""
    return x if stored == "mxfp4" else _permute_groups(x, PARTS, ORDERS[stored])


def unpack(fed: Tensor, stored: str) -> Tensor:
    """Inverts `pack`, bit for bit."""
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

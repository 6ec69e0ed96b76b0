"""Row-invariant computing in plain torch on a CPU: every product has the same number of rows.

BLAS chooses its kernels, and with them the order of summation, by the number of rows. Rows are therefore padded to
chunks of ROWS, so that one kernel computes every row. That a row's place in a chunk does not matter is checked by
`firesteel verify`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from firesteel.device import DeviceSpec

ROWS = 16


def on_cpu(device: DeviceSpec) -> str | None:
    """Requires a CPU: on a GPU, torch chooses kernels of its own by shape."""
    return f"is for CPUs, this is {device.name}" if device.is_cuda else None


def multiply(x: Tensor, weight: Tensor) -> Tensor:
    """Returns x @ weight.T in fp32 from fp32 x [T, N] and weight [M, N]."""
    chunks = pad_rows(x)
    parts = [functional.linear(chunk, weight) for chunk in chunks]
    y = torch.cat(parts) if parts else x.new_zeros(0, weight.shape[0])
    return y[: x.shape[0]]


def pad_rows(x: Tensor) -> Tensor:
    """Returns [chunks, ROWS, N]: the rows of x, then zeros, in new memory, so that every chunk is aligned alike."""
    chunks = torch.zeros(-(-x.shape[0] // ROWS), ROWS, *x.shape[1:], dtype=x.dtype)
    chunks.flatten(0, 1)[: x.shape[0]] = x
    return chunks

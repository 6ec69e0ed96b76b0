"""Device values to the host, asked for now and read later; knows no meaning of them."""

from __future__ import annotations

import torch
from torch import Tensor


class Download:
    """Copies are queued behind what runs and end in pinned memory: reading waits for them and nothing later."""

    def __init__(self, *tensors: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._copies = [_copy(one) for one in tensors]
        if any(one.is_cuda for one in tensors):
            self._event = torch.cuda.Event()
            self._event.record()

    def read(self) -> list[Tensor]:
        """On the CPU."""
        if self._event is not None:
            self._event.synchronize()
        return self._copies


def _copy(tensor: Tensor) -> Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return host.copy_(tensor, non_blocking=True)

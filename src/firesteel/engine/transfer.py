"""Copies of small values between host and device that do not wait for the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def upload(values: Tensor | npt.NDArray[Any], device: torch.device) -> Tensor:
    """Through pinned memory on CUDA, which torch keeps until the copy has run."""
    tensor = torch.as_tensor(values)
    if device.type == "cuda" and tensor.is_cpu:
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def upload_ints(values: Any, device: torch.device) -> Tensor:
    return upload(np.asarray(values, dtype=np.int64), device)


def upload_floats(values: Any, device: torch.device) -> Tensor:
    return upload(np.asarray(values, dtype=np.float32), device)


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

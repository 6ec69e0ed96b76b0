"""Copies of small values between host and device that do not wait for the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def upload(values: Tensor | npt.NDArray[Any], device: torch.device) -> Tensor:
    """Copies to the device without waiting; on CUDA through pinned memory, which torch keeps until then."""
    tensor = torch.as_tensor(values)
    if device.type == "cuda" and tensor.is_cpu:
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def upload_ints(values: Any, device: torch.device) -> Tensor:
    return upload(np.asarray(values, dtype=np.int64), device)


def upload_floats(values: Any, device: torch.device) -> Tensor:
    return upload(np.asarray(values, dtype=np.float32), device)


class Download:
    """Copies of tensors to the host, queued behind what runs; `read` waits for them and nothing later."""

    def __init__(self, *tensors: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._copies = [_copy(tensor) for tensor in tensors]
        if any(tensor.is_cuda for tensor in tensors):
            self._event = torch.cuda.Event()
            self._event.record()

    def read(self) -> list[Tensor]:
        """Returns the tensors on the CPU after waiting for the copies."""
        if self._event is not None:
            self._event.synchronize()
        return self._copies


def _copy(tensor: Tensor) -> Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return host.copy_(tensor, non_blocking=True)

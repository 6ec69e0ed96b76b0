"""Small host values to the device without waiting for it; knows no meaning of them."""

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

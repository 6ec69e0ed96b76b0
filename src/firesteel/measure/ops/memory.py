"""Room in memory for a workload."""

from __future__ import annotations

import gc

import torch

from firesteel.device import DeviceSpec, available_bytes
from firesteel.measure.ops.workloads import OpWorkload


def too_large(workload: OpWorkload, device: DeviceSpec, share: float) -> str | None:
    """Returns why the arguments would exceed a share of the free memory, or None."""
    free = available_bytes(device)
    if workload.part.held_bytes <= share * free:
        return None
    return f"not run: needs {workload.part.held_bytes / 1e9:.1f} GB, {share * free / 1e9:.1f} GB may be taken"


def free_memory(device: DeviceSpec) -> None:
    """Frees unused memory, so that `available_bytes` is accurate."""
    gc.collect()
    if device.is_cuda:
        torch.cuda.empty_cache()

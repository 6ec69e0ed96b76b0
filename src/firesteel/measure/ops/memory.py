"""Whether memory has room for a workload; knows no kernel."""

from __future__ import annotations

import gc

import torch

from firesteel.device import DeviceSpec, available_bytes
from firesteel.measure.ops.workloads import OpWorkload


def too_large(workload: OpWorkload, device: DeviceSpec, share: float) -> str | None:
    """Why its arguments would take more than a share of what is free, or None."""
    free = available_bytes(device)
    if workload.part.held_bytes <= share * free:
        return None
    return f"not run: needs {workload.part.held_bytes / 1e9:.1f} GB, {share * free / 1e9:.1f} GB may be taken"


def free_memory(device: DeviceSpec) -> None:
    """Gives back what is no longer used, so that what is available can be seen."""
    gc.collect()
    if device.is_cuda:
        torch.cuda.empty_cache()

"""Limits of an engine that follow the device unless they are configured."""

from __future__ import annotations

from firesteel.config import BatchConfig
from firesteel.device import GIB, DeviceSpec

MANY_TOKENS, FEW_TOKENS = 8192, 2048  # default tokens per step
REQUESTS_BY_BYTES = ((100 * GIB, 256), (40 * GIB, 128))  # (least GPU memory, most requests at a time)
FEW_REQUESTS = 64
LARGE_GPU_BYTES = 40 * GIB
RUN_AHEAD_STEPS = 3  # launched before the tokens of the step ahead of them are read


def find_budget(config: BatchConfig, device: DeviceSpec) -> int:
    """Returns the most tokens per step. With few tokens, reading the experts takes most of the time."""
    is_large = device.is_cuda and device.memory_bytes >= LARGE_GPU_BYTES
    return config.max_num_batched_tokens or (MANY_TOKENS if is_large else FEW_TOKENS)


def find_most_requests(config: BatchConfig, device: DeviceSpec) -> int:
    """Returns the most requests decoded together; half of unified memory is left to the host."""
    if config.max_num_seqs:
        return config.max_num_seqs
    memory = device.memory_bytes // 2 if device.is_unified else device.memory_bytes
    return next((most for least, most in REQUESTS_BY_BYTES if device.is_cuda and memory >= least), FEW_REQUESTS)


def find_ahead(config: BatchConfig, device: DeviceSpec) -> int:
    """Returns the number of steps to launch ahead: 0 on a CPU, which computes as it launches."""
    return RUN_AHEAD_STEPS if config.run_ahead and device.is_cuda else 0

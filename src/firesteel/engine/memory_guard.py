"""Keeps a host that shares its memory with the GPU from running out of it while requests are served."""

from __future__ import annotations

from collections.abc import Callable

import torch

from firesteel.config import BatchConfig
from firesteel.device import GIB, DeviceSpec, available_bytes
from firesteel.engine.cache.kv_cache import count_step_bytes
from firesteel.errors import HostMemoryLow
from firesteel.model.spec import ModelSpec
from firesteel.types import Request


class MemoryGuard:
    """Refuses requests whose steps would leave the host less than its reserve.

    Pages are allocated at start. What a request may add is the working memory of its largest step, as far as torch
    does not hold it already.
    """

    def __init__(
        self,
        spec: ModelSpec,
        device: DeviceSpec,
        config: BatchConfig,
        reserve_gib: float,
        *,
        find_available: Callable[[DeviceSpec], int] = available_bytes,
        find_cached: Callable[[DeviceSpec], int] | None = None,
    ) -> None:
        self.spec = spec
        self.device = device
        self.most_tokens = config.max_num_batched_tokens
        self.reserve_bytes = int(reserve_gib * GIB)
        self.find_available = find_available
        self.find_cached = find_cached or count_cached

    def check(self, request: Request) -> None:
        """Raises HostMemoryLow if the request would take the host below its reserve."""
        tokens = min(request.num_prompt, self.most_tokens)
        needed = max(0, count_step_bytes(self.spec, tokens) - self.find_cached(self.device))
        available = self.find_available(self.device)
        if available - needed < self.reserve_bytes:
            raise HostMemoryLow(
                f"the host has {available / GIB:.1f} GiB of memory free, this request may take {needed / GIB:.1f}, "
                f"and {self.reserve_bytes / GIB:.1f} must stay free: send it again later, end other programs, or "
                "start the server with a smaller --kv-cache-gib or --memory-reserve-gib"
            )


def count_cached(device: DeviceSpec) -> int:
    """Returns the bytes that torch has taken from the GPU's memory and holds unused."""
    if device.torch_device.type != "cuda":
        return 0
    here = device.torch_device
    return torch.cuda.memory_reserved(here) - torch.cuda.memory_allocated(here)

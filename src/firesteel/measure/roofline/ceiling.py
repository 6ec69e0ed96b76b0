"""Ceilings of this machine: memory bandwidth and matrix rate, each measured alone.

A kernel is judged by its share of these, not by the data sheet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from firesteel.device import GIB, DeviceSpec, available_bytes
from firesteel.measure.timing import Timing, find_cache_bytes, time_calls

MATRIX_SIZE = {True: 8192, False: 1024}  # keyed by is_cuda; 8192 in bf16 exceeds every L2
SMALLEST_READ, LARGEST_READ = 256 << 20, 4 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    work: float  # bytes or floating-point operations per call
    scale: float  # of `unit`
    unit: str
    timing: Timing

    @property
    def rate(self) -> float:
        return self.work / self.timing.median_s / self.scale


def read_ceiling(
    device: DeviceSpec, *, num_bytes: int | None = None, lent: Tensor | None = None, samples: int = 20
) -> Ceiling:
    """Measures GB/s of a streaming read; by default the buffer is much larger than the cache.

    A larger `lent` buffer is read instead, because an engine leaves little memory beside its pages. A CPU ignores
    it: its unwritten pages have no memory behind them.
    """
    num_bytes = _read_bytes(device) if num_bytes is None else num_bytes
    if device.is_cuda and lent is not None and lent.nbytes > num_bytes:
        data = lent.view(-1).view(torch.int32)[: LARGEST_READ // 4]
    else:
        kind = torch.int32 if device.is_cuda else torch.float32  # on a CPU torch widens int32 to sum, which is slow
        data = torch.arange(num_bytes // 4, dtype=kind, device=device.torch_device)
    timing = time_calls(_reader(device), [(data,)], device, samples=samples)
    return Ceiling(work=data.nbytes, scale=1e9, unit="GB/s", timing=timing)


def matrix_ceiling(device: DeviceSpec, *, size: int | None = None, samples: int = 20) -> Ceiling:
    """Measures TFLOP/s of a square matrix product in the type of the device: bf16 on a GPU, fp32 on a CPU."""
    size = MATRIX_SIZE[device.is_cuda] if size is None else size
    generator = torch.Generator(device.torch_device).manual_seed(0)
    a, b = torch.randn(2, size, size, device=device.torch_device, generator=generator).to(device.dtype)
    timing = time_calls(torch.mm, [(a, b)], device, samples=samples)
    return Ceiling(work=2.0 * size**3, scale=1e12, unit="TFLOP/s", timing=timing)


def _reader(device: DeviceSpec) -> Callable[[Tensor], Tensor]:
    if not device.is_cuda:
        return torch.sum
    from firesteel.measure.roofline.stream_read import stream_read  # Triton need not be installed on a CPU

    return lambda data: stream_read(data, device.num_sms)


def _read_bytes(device: DeviceSpec) -> int:
    wanted = LARGEST_READ if device.is_cuda else max(SMALLEST_READ, 4 * find_cache_bytes(device))
    return min(wanted, available_bytes(device) // 4)

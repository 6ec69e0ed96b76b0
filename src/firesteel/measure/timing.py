"""Seconds a call takes with a cold cache, on a GPU or a CPU; knows no op.

A sample is one pass over several copies of the arguments, which together outgrow the cache, divided by its calls.
On a GPU the pass is one CUDA graph between two events, so that launches from Python do not count.
"""

from __future__ import annotations

import dataclasses
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from firesteel.device import DeviceSpec

OUTGROW = 3  # times the cache that a rotation must read before it comes back to the same bytes
MAX_COPIES = 256  # arguments smaller than OUTGROW * cache / MAX_COPIES live in the cache in a real step too
UNKNOWN_CPU_CACHE = 64 << 20
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    samples_s: tuple[float, ...]  # seconds a call, each the mean of one pass
    calls: int  # in each sample
    warmups: int  # untimed calls before the first sample

    @property
    def median_s(self) -> float:
        return statistics.median(self.samples_s)

    @property
    def spread_s(self) -> float:
        return spread(self.samples_s)


def spread(samples: Sequence[float]) -> float:
    """Distance between the quartiles: the middle half of the samples lies within it."""
    if len(samples) < 2:
        return 0.0
    first, _, third = statistics.quantiles(samples, n=4, method="inclusive")
    return third - first


def time_calls(
    function: Callable[..., object],
    inputs: Sequence[tuple[Any, ...]],
    device: DeviceSpec,
    *,
    samples: int = 20,
    warmups: int = 3,
    rounds: int = 1,
    graph: bool = True,
) -> Timing:
    """Each sample calls `function(*args)` for every args of `inputs`, `rounds` times over.

    `warmups` counts untimed passes. `graph=False` launches from Python, for what cannot be captured; a CPU has no
    graphs. Short calls on a GPU want enough inputs or rounds that a pass outlasts its launch, some 10 us.
    """
    if not inputs or samples < 1 or warmups < 1 or rounds < 1:
        raise ValueError("timing needs at least one input, sample, warm-up and round")

    def one_pass() -> None:
        for _ in range(rounds):
            for args in inputs:
                function(*args)

    measure = _time_cuda if device.is_cuda else _time_cpu
    seconds, passes = measure(one_pass, device, samples, warmups, graph)
    calls = rounds * len(inputs)
    return Timing(samples_s=tuple(one / calls for one in seconds), calls=calls, warmups=passes * calls)


def cold_inputs(args: tuple[Any, ...], cache_bytes: int) -> list[tuple[Any, ...]]:
    """Copies of the arguments, as many as it takes to find none of them in the cache when it comes round again."""
    size = max(_num_bytes(args), 1)
    copies = min(max(-(-OUTGROW * cache_bytes // size), 1), MAX_COPIES)
    return [_copy(args) for _ in range(copies)]


def find_cache_bytes(device: DeviceSpec, folder: Path = CPU_CACHES) -> int:
    """Of the last cache before memory: L2 on a GPU, the largest that the kernel lists on a CPU."""
    if device.is_cuda:
        return device.l2_bytes
    sizes = []
    for path in folder.glob("index*/size"):
        if found := re.fullmatch(r"(\d+)([KMG]?)\s*", path.read_text(encoding="ascii")):
            sizes.append(int(found[1]) * UNITS[found[2]])
    return max(sizes, default=UNKNOWN_CPU_CACHE)


def _time_cpu(
    one_pass: Callable[[], None], device: DeviceSpec, samples: int, warmups: int, graph: bool
) -> tuple[list[float], int]:
    for _ in range(warmups):
        one_pass()
    seconds = []
    for _ in range(samples):
        start = time.perf_counter()
        one_pass()
        seconds.append(time.perf_counter() - start)
    return seconds, warmups


def _time_cuda(
    one_pass: Callable[[], None], device: DeviceSpec, samples: int, warmups: int, graph: bool
) -> tuple[list[float], int]:
    """Samples are queued without waiting between them: the GPU is still busy when the next launch arrives."""
    with torch.cuda.device(device.torch_device):
        aside = torch.cuda.Stream()  # what is captured must have run on a side stream before
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(warmups):
                one_pass()
        torch.cuda.synchronize()
        run, passes = one_pass, warmups
        if graph:
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured):
                one_pass()
            run, passes = captured.replay, warmups + 1
            run()
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(samples)]
        for start, stop in events:
            start.record()
            run()
            stop.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(stop) / 1e3 for start, stop in events], passes


def _num_bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.nbytes
    return sum(_num_bytes(part) for part in _parts(value))


def _parts(value: Any) -> list[Any]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, part.name) for part in dataclasses.fields(value)]
    return list(value) if isinstance(value, list | tuple) else []


def _copy(value: Any) -> Any:
    """Of tensors wherever they sit in the arguments: an op's packed weights come in a dataclass."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        copied = {part.name: _copy(getattr(value, part.name)) for part in dataclasses.fields(value)}
        return dataclasses.replace(value, **copied)
    return type(value)(_copy(part) for part in value) if isinstance(value, list | tuple) else value

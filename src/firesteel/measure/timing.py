"""Seconds per call with a cold cache, on a GPU or a CPU.

A sample is one pass over several copies of the arguments, which together exceed the cache, divided by its calls.
On a GPU the pass is one CUDA graph between two events, so that launches from Python do not count.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from firesteel.device import DeviceSpec

OUTGROW = 3  # size of a rotation in caches: bytes read before the same bytes come again
MAX_COPIES = 256  # arguments below OUTGROW * cache / MAX_COPIES stay in the cache in a real step too
UNKNOWN_CPU_CACHE = 64 << 20
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    samples_s: tuple[float, ...]  # seconds per call, each the mean of one pass
    calls: int  # per sample
    warmups: int  # untimed calls before the first sample

    @property
    def median_s(self) -> float:
        return statistics.median(self.samples_s)


def spread(samples: Sequence[float]) -> float:
    """Returns the distance between the quartiles, within which the middle half of the samples lies."""
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
    """Times passes; each sample calls `function(*args)` for every args of `inputs`, `rounds` times over.

    `warmups` counts untimed passes. `graph=False` launches from Python, for functions that cannot be captured; a
    CPU has no graphs. Short calls on a GPU need enough inputs or rounds for a pass to outlast its launch, about
    10 us.
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
    return Timing(samples_s=tuple(pass_s / calls for pass_s in seconds), calls=calls, warmups=passes * calls)


def find_cache_bytes(device: DeviceSpec, folder: Path = CPU_CACHES) -> int:
    """Returns the size of the last cache before memory: L2 on a GPU, the largest in /sys on a CPU."""
    if device.is_cuda:
        return device.l2_bytes
    sizes = []
    for path in folder.glob("index*/size"):
        if size := re.fullmatch(r"(\d+)([KMG]?)\s*", path.read_text(encoding="ascii")):
            sizes.append(int(size[1]) * UNITS[size[2]])
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
    """Queues samples without waiting between them, so that the GPU is still busy when the next launch arrives."""
    with torch.cuda.device(device.torch_device):
        side_stream = torch.cuda.Stream()  # warm-up before capture must run on a side stream
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
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

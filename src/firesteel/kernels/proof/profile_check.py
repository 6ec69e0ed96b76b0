"""Compares the ledger with the kernels that a profiler saw on the GPU.

A Triton kernel appears in the profiler under its function's name. torch's own kernels, copies and fills are in no
ledger and are left out, unless one bears the name of a kernel of ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Any

from firesteel.device import DeviceSpec
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.registry import ALL_OPS


def compare(launched: Mapping[str, int], seen: Mapping[str, int], ours: Collection[str]) -> list[str]:
    """Returns the kernels of which ledger and profiler count different launches; `ours` are the ops' kernels."""
    differences = []
    for name in sorted({*launched, *ours}):
        num_noted, num_seen = launched.get(name, 0), seen.get(name, 0)
        if num_noted != num_seen:
            differences.append(f"{name}: the ledger has {num_noted} launches, the profiler saw {num_seen}")
    return differences


def own_kernels(capability: tuple[int, int]) -> set[str]:
    """Returns the names of all kernels that the ops declare to launch on such a GPU."""
    makers = [op.make_device_code for op in ALL_OPS if op.make_device_code]
    return {code.kernel_name for make in makers for code in make(capability)}


class LaunchWatch:
    """Profiles what runs inside `with`, in a ledger cleared at the start; `differences` and `count` come after."""

    def __init__(self, ledger: Ledger, device: DeviceSpec) -> None:
        assert device.capability is not None, "a profiler sees kernels on a GPU only"
        self.ledger = ledger
        self.capability = device.capability
        self.differences: list[str] = []
        self.count = 0

    def __enter__(self) -> LaunchWatch:
        self.ledger.clear()
        self._profiler = new_profiler()
        self._profiler.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._profiler.__exit__(kind, error, trace)
        if error is None:
            launched = self.ledger.launches()
            self.count = sum(launched.values())
            self.differences = compare(launched, count_kernels(self._profiler), own_kernels(self.capability))


def new_profiler() -> Any:
    """Builds torch's profiler of GPU kernels; acc_events silences a warning about cycles in older versions."""
    from torch.profiler import ProfilerActivity, profile

    return profile(activities=[ProfilerActivity.CUDA], acc_events=True)


def count_kernels(profiler: Any) -> Counter[str]:
    """Counts how often each kernel ran on the GPU."""
    return Counter(event.name for event in profiler.events() if event.device_type.name == "CUDA")

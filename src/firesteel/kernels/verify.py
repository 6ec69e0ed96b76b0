"""Holds an implementation to its reference on one sample; knows no particular op.

Arguments stand between guards of poison, fresh memory is poisoned too: what reads or writes out of bounds, or
leaves part of its result unwritten, is found out. Every implementation runs twice and must give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from firesteel.device import DeviceSpec
from firesteel.kernels.op import REFERENCE, Implementation, Op, Sample
from firesteel.kernels.tolerance import assert_close

GUARD_BYTES = 1 << 16
POISON = 255  # a byte: NaN in every float type and in E8M0, -1 in a signed integer
_MAKERS = {torch.empty, torch.empty_like, torch.empty_strided, Tensor.new_empty, Tensor.new_empty_strided}


@dataclass(frozen=True, slots=True)
class Check:
    """What came of one implementation on one sample: passed, refused the arguments, or failed."""

    op: str
    implementation: str
    sample: str
    refusal: str | None = None
    failure: str | None = None


def verify(op: Op[Any, Any], device: DeviceSpec, samples: Iterable[Sample]) -> Iterator[Check]:
    """Checks every implementation but the reference that can run on the device."""
    others = [one for name, one in op.implementations.items() if name != REFERENCE]
    usable = [one for one in others if one.needs(device) is None]
    for sample in samples:
        for implementation in usable:
            refusal = implementation.accepts(*sample.args) if implementation.accepts else None
            failure = None if refusal else check(op, implementation, sample)
            yield Check(op.name, implementation.name, sample.label, refusal, failure)


def check(op: Op[Any, Any], implementation: Implementation[Any, Any], sample: Sample) -> str | None:
    """Why the implementation is wrong on this sample, or None."""
    written = sample.clone()
    expected = op.reference(*written)
    kept = [same_bits(before, after) for before, after in zip(tensors(sample.args), tensors(written), strict=True)]
    results = []
    for _ in range(2):
        args, guards = guard_all(sample.args)
        with _PoisonedMemory():
            results.append(implementation.function(*args))
        for number, (guard, unchanged) in enumerate(zip(guards, kept, strict=True)):
            if not guard.holds(unchanged):
                return f"tensor {number} of the arguments was written {'to' if unchanged else 'out of bounds'}"
    try:
        assert_close(actual=results[0], expected=expected, tolerance=op.tolerance)
    except AssertionError as error:
        return str(error)
    twice = zip(tensors(results[0]), tensors(results[1]), strict=True)
    return None if all(same_bits(one, other) for one, other in twice) else "a second run gave other bits"


def tensors(value: Any) -> list[Tensor]:
    """Every tensor in nested tuples, lists and dataclasses, in order."""
    found: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    rebuild(value, keep)
    return found


def rebuild(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple | list):
        return type(value)([rebuild(item, change) for item in value])
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{part.name: rebuild(getattr(value, part.name), change) for part in fields(value)})
    return value


def same_bits(one: Tensor, other: Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(_bytes(one), _bytes(other))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


@dataclass(frozen=True, slots=True)
class _Guard:
    memory: Tensor  # bytes
    view: Tensor
    before: Tensor  # copy of memory

    def holds(self, unchanged: bool) -> bool:
        """Nothing around the view was written, nor in it where it must be `unchanged`."""
        after = self.memory
        if not unchanged:
            after = self.memory.clone()
            inside = _inside(after, self.view)
            inside.copy_(_inside(self.before, self.view))
        return torch.equal(after, self.before)


def guard_all(args: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[_Guard]]:
    """Copies of the arguments with the same strides, poison before and behind each tensor and in its gaps."""
    guards: list[_Guard] = []

    def guard(tensor: Tensor) -> Tensor:
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        extent = 1 + sum((size - 1) * stride for size, stride in steps) if tensor.numel() else 0
        num_bytes = -(-extent * tensor.element_size() // 16) * 16 + 2 * GUARD_BYTES
        memory = torch.full((num_bytes,), POISON, dtype=torch.uint8, device=tensor.device)
        view = _inside(memory, tensor)
        view.copy_(tensor)
        guards.append(_Guard(memory, view, memory.clone()))
        return view

    return rebuild(args, guard), guards


def _inside(memory: Tensor, like: Tensor) -> Tensor:
    return memory.view(like.dtype).as_strided(like.shape, like.stride(), GUARD_BYTES // like.element_size())


class _PoisonedMemory(TorchFunctionMode):
    """Fills what `torch.empty` and its like return."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        if function in _MAKERS and result.numel():
            torch.empty(0, dtype=torch.uint8, device=result.device).set_(result.untyped_storage()).fill_(POISON)
        return result

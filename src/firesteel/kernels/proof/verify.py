"""Compares an implementation with its reference on one sample.

Arguments stand between guards of poison, and fresh memory is poisoned too, so that reads and writes out of bounds
and unwritten parts of a result are detected. Every implementation runs twice and must give the same bits.
"""
# mypy: disable-error-code="import-untyped,import-not-found"

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from enum import Enum
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from firesteel.device import DeviceSpec
from firesteel.kernels.op.op import REFERENCE, Implementation, Op
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.op.tolerance import Errors, assert_close

GUARD_BYTES = 1 << 16
POISON = 255  # a byte: NaN in every float type and in E8M0, -1 in a signed integer
_MAKERS = {torch.empty, torch.empty_like, torch.empty_strided, Tensor.new_empty, Tensor.new_empty_strided}


class Status(Enum):
    PASSED = "passed"
    FAILED = "FAILED"
    REFUSED = "refused"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Check:
    """The outcome of one implementation on one sample: passed, refused the arguments, failed, or was not run."""

    op: str
    implementation: str
    sample: str
    refusal: str | None = None
    failure: str | None = None
    worst: float | None = None  # error if it passed, as Tolerance defines it
    rms: float | None = None
    not_run: str | None = None  # why this device cannot run it

    @property
    def status(self) -> Status:
        if self.not_run:
            return Status.NOT_RUN
        if self.refusal:
            return Status.REFUSED
        return Status.FAILED if self.failure else Status.PASSED

    @property
    def why(self) -> str:
        return self.not_run or self.refusal or self.failure or ""

    def as_dict(self) -> dict[str, Any]:
        return {"status": self.status.value, **asdict(self)}


def verify(op: Op[Any, Any], device: DeviceSpec, samples: Iterable[Sample]) -> Iterator[Check]:
    """Checks every implementation but the reference that can run on the device."""
    usable = [implementation for implementation in _others(op) if implementation.needs(device) is None]
    for sample in samples:
        for implementation in usable:
            yield check_sample(op, implementation, sample)


def list_unusable(op: Op[Any, Any], device: DeviceSpec) -> list[Check]:
    """Lists a row for each implementation that this device cannot run, with the reason."""
    reasons = [(implementation.name, implementation.needs(device)) for implementation in _others(op)]
    return [Check(op.name, name, "", not_run=why) for name, why in reasons if why is not None]


def check_sample(op: Op[Any, Any], implementation: Implementation[Any, Any], sample: Sample) -> Check:
    """Checks one sample; a kernel that does not compile or launch is a failure, not an exception."""
    row = Check(op.name, implementation.name, sample.label)
    try:
        sample = pack_sample(implementation, sample)
        if refusal := implementation.accepts(*sample.args) if implementation.accepts else None:
            return replace(row, refusal=refusal)
        errors = _hold_to_reference(op, implementation, sample)
    except AssertionError as error:
        return replace(row, failure=str(error))
    except kernel_faults() as error:
        return with_fault(row, error)
    return replace(row, worst=errors.worst, rms=errors.rms)


def pack_sample(implementation: Implementation[Any, Any], sample: Sample) -> Sample:
    """Returns the sample with weights in the order that the implementation reads; the reference restores them."""
    return sample if implementation.pack is None else replace(sample, args=implementation.pack([sample.args])[0])


def with_fault(row: Check, error: Exception) -> Check:
    """Returns the row with the error as its failure, or as not run if memory ran out."""
    if isinstance(error, torch.OutOfMemoryError):
        return replace(row, not_run=f"memory ran out: {_first_line(error)}")
    return replace(row, failure=f"{type(error).__name__}: {_first_line(error)}")


def has_failed(device: DeviceSpec) -> bool:
    """Returns whether the GPU had a fault after which every call of this process fails."""
    if not device.is_cuda:
        return False
    try:
        torch.cuda.synchronize(device.torch_device)
    except RuntimeError:
        return True
    return False


def check(op: Op[Any, Any], implementation: Implementation[Any, Any], sample: Sample) -> str | None:
    """Returns why the implementation is wrong on this sample, or None."""
    try:
        _hold_to_reference(op, implementation, sample)
    except AssertionError as error:
        return str(error)
    return None


def kernel_faults() -> tuple[type[Exception], ...]:
    """Returns the exceptions of a kernel that does not compile, does not fit the GPU, or breaks on it."""
    if importlib.util.find_spec("triton") is None:
        return RuntimeError, ValueError
    from triton.errors import TritonError

    return RuntimeError, ValueError, TritonError


def _others(op: Op[Any, Any]) -> list[Implementation[Any, Any]]:
    return [implementation for name, implementation in op.implementations.items() if name != REFERENCE]


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "")


def _hold_to_reference(op: Op[Any, Any], implementation: Implementation[Any, Any], sample: Sample) -> Errors:
    """Raises AssertionError if the implementation is wrong on this sample."""
    written = sample.clone()
    expected = op.reference(*written)
    kept = [same_bits(before, after) for before, after in zip(tensors(sample.args), tensors(written), strict=True)]
    results = []
    del written
    for _ in range(2):
        results.append(_run_guarded(implementation, sample, kept))
    tolerance = implementation.tolerance or sample.tolerance or op.tolerance
    errors = assert_close(actual=results[0], expected=expected, tolerance=tolerance)
    twice = zip(tensors(results[0]), tensors(results[1]), strict=True)
    assert all(same_bits(first, second) for first, second in twice), "a second run gave other bits"
    return errors


def _run_guarded(implementation: Implementation[Any, Any], sample: Sample, kept: list[bool]) -> Any:
    """Runs once on guarded copies; `kept` says which tensors of the arguments must not change.

    The guards do not outlive the call, because experts are large.
    """
    args, guards = guard_all(sample.args)
    with _PoisonedMemory():
        result = implementation.function(*args)
    for number, (guard, unchanged) in enumerate(zip(guards, kept, strict=True)):
        place = "to" if unchanged else "out of bounds"
        assert guard.holds(unchanged), f"tensor {number} of the arguments was written {place}"
    return result


def tensors(value: Any) -> list[Tensor]:
    """Lists every tensor in nested tuples, lists and dataclasses, in order."""
    collected: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        collected.append(tensor)
        return tensor

    rebuild(value, keep)
    return collected


def rebuild(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple | list):
        return type(value)([rebuild(item, change) for item in value])
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{part.name: rebuild(getattr(value, part.name), change) for part in fields(value)})
    return value


def same_bits(first: Tensor, second: Tensor) -> bool:
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    return torch.equal(_bytes(first), _bytes(second))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


@dataclass(frozen=True, slots=True)
class _Guard:
    memory: Tensor  # bytes
    view: Tensor
    before: Tensor  # copy of memory

    def holds(self, unchanged: bool) -> bool:
        """Returns whether nothing around the view was written, nor in it if it must be `unchanged`."""
        after = self.memory
        if not unchanged:
            after = self.memory.clone()
            inside = _inside(after, self.view)
            inside.copy_(_inside(self.before, self.view))
        return torch.equal(after, self.before)


def guard_all(args: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[_Guard]]:
    """Copies the arguments with the same strides, poison before and behind each tensor and in its gaps."""
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

"""What an op is: a contract with a reference, implementations, samples and a tolerance; knows no particular op.

`@define_op(...)` on the reference makes the Op; `@op.implementation(name, needs=...)` adds a faster way. `Chosen`
is the op bound to one device: candidates are settled once, at start, and every call goes into the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, TypeVar

import torch

from firesteel.device import DeviceSpec
from firesteel.errors import UserError
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.tolerance import Tolerance

P = ParamSpec("P")
R = TypeVar("R")
Needs = Callable[[DeviceSpec], str | None]  # why this device will not do, or None
REFERENCE = "reference"


class KernelError(UserError):
    """An implementation was asked for that does not exist, cannot run here or refuses these arguments."""


@dataclass(frozen=True, slots=True)
class Implementation(Generic[P, R]):
    """`name` is the family, or "family:variant" where a family has several ways for different arguments."""

    name: str
    function: Callable[P, R]
    needs: Needs
    accepts: Callable[P, str | None] | None = None  # why these arguments will not do, or None


@dataclass(frozen=True, slots=True)
class Sample:
    """Arguments to try an op with; ops may write into them, so each use takes its own copy."""

    label: str
    args: tuple[Any, ...]

    def clone(self) -> tuple[Any, ...]:
        return tuple(_copy(arg) for arg in self.args)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCode:
    """A Triton kernel with the types and constants of one variant: enough to compile it for an absent GPU."""

    variant: str  # "triton:gemm mxfp8"
    kernel: Any  # what @triton.jit made
    signature: dict[str, str]  # argument -> "*bf16", "*u8", "i32", "fp32", ...; constants left out
    constants: dict[str, Any]
    num_warps: int = 4
    num_stages: int = 3


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return value.clone() if hasattr(value, "clone") else value


def anywhere(device: DeviceSpec) -> None:
    return None


def capability(major: int, minor: int) -> Needs:
    def needs(device: DeviceSpec) -> str | None:
        if device.capability is not None and device.capability >= (major, minor):
            return None
        return f"needs an NVIDIA GPU of compute capability {major}.{minor} or later, this is {device.name}"

    return needs


@dataclass(slots=True)
class Op(Generic[P, R]):
    name: str
    reference: Callable[P, R]
    bytes: Callable[P, int]  # the fewest bytes a call must move
    tolerance: Tolerance
    implementations: dict[str, Implementation[P, R]] = field(default_factory=dict)
    make_samples: Callable[[torch.device], Iterator[Sample]] | None = None
    make_device_code: Callable[[tuple[int, int]], Iterator[DeviceCode]] | None = None
    order: tuple[str, ...] = (REFERENCE,)  # measured preference, best first

    def __post_init__(self) -> None:
        self.implementations[REFERENCE] = Implementation(REFERENCE, self.reference, anywhere)

    def implementation(
        self, name: str, *, needs: Needs, accepts: Callable[P, str | None] | None = None
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        def add(function: Callable[P, R]) -> Callable[P, R]:
            self.implementations[name] = Implementation(name, function, needs, accepts)
            return function

        return add

    def samples(self, function: Callable[[torch.device], Iterator[Sample]]) -> None:
        self.make_samples = function

    def device_code(self, function: Callable[[tuple[int, int]], Iterator[DeviceCode]]) -> None:
        """Lists what the implementations launch on a GPU of the given compute capability."""
        self.make_device_code = function

    def prefer(self, *names: str) -> None:
        if unknown := set(names) - set(self.implementations):
            raise ValueError(f"{self.name} has no implementation {sorted(unknown)}")
        self.order = names

    def choose(self, device: DeviceSpec, asked: str | None, ledger: Ledger) -> Chosen[P, R]:
        """Settles what may run: what was asked for, its variants in order of definition, or by preference."""
        if asked is None:
            usable = [self.implementations[name] for name in self.order]
            return Chosen(self, [one for one in usable if one.needs(device) is None], ledger)
        matching = [one for name, one in self.implementations.items() if asked in (name, name.partition(":")[0])]
        if not matching:
            raise KernelError(f"{self.name} has no implementation {asked!r}; it has {self._listing(device)}")
        usable = [one for one in matching if one.needs(device) is None]
        if not usable:
            why = matching[0].needs(device)
            raise KernelError(f"{self.name}={asked} {why}; here there is {self._listing(device)}")
        return Chosen(self, usable, ledger)

    def _listing(self, device: DeviceSpec) -> str:
        return ", ".join(name for name, one in self.implementations.items() if one.needs(device) is None)


def define_op(*, bytes: Callable[P, int], tolerance: Tolerance) -> Callable[[Callable[P, R]], Op[P, R]]:
    """Turns a reference into the op of the same name."""

    def define(reference: Callable[P, R]) -> Op[P, R]:
        return Op(reference.__name__, reference, bytes, tolerance)

    return define


@dataclass(frozen=True, slots=True)
class Chosen(Generic[P, R]):
    """An op on one device. A call runs the first candidate that takes the arguments, or none and says why."""

    op: Op[P, R]
    candidates: list[Implementation[P, R]]
    ledger: Ledger

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        refusals = []
        for candidate in self.candidates:
            why = candidate.accepts(*args, **kwargs) if candidate.accepts else None
            if why is None:
                return self.ledger.run(self.op.name, candidate.name, candidate.function, *args, **kwargs)
            refusals.append(f"{candidate.name} {why}")
        raise KernelError(f"{self.op.name}: no implementation takes these arguments: {'; '.join(refusals)}")

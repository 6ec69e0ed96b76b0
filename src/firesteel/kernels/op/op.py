"""An op: a contract with a reference, implementations, samples and a tolerance.

`@define_op(...)` on the reference makes the Op; `@op.implementation(name, needs=...)` adds a faster way, and
`op.choose` binds it to one device (`Chosen`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Generic, ParamSpec, TypeVar

import torch

from firesteel.device import DeviceSpec
from firesteel.errors import KernelError
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.op.chosen import Chosen
from firesteel.kernels.op.device_code import CudaCode, DeviceCode
from firesteel.kernels.op.invariance import INVARIANT, keep_invariant
from firesteel.kernels.op.lack import explain_lack
from firesteel.kernels.op.operands import Operands
from firesteel.kernels.op.profile import OpProfile
from firesteel.kernels.op.requirement import Requirement
from firesteel.kernels.op.rows import Rows
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.op.tolerance import Tolerance
from firesteel.kernels.operands.shapes import MakeWorkloads

P = ParamSpec("P")
R = TypeVar("R")
Needs = Callable[[DeviceSpec], str | None]  # why this device cannot run it, or None
Pack = Callable[[Sequence[tuple[Any, ...]]], list[tuple[Any, ...]]]  # weights that calls share stay shared
REFERENCE = "reference"


@dataclass(frozen=True, slots=True)
class Implementation(Generic[P, R]):
    """A way to compute an op; `name` is "triton", or "triton:gemm" if variants take different arguments."""

    name: str
    function: Callable[P, R]
    needs: Needs
    accepts: Callable[P, str | None] | None = None  # why it refuses these arguments, or None
    reads_fed: bool = False  # saves a pass if its activations come as Fed, stored by their producer
    pack: Pack | None = None  # puts the weights of calls in the order that it reads; None: the checkpoint's
    can_capture: bool = True  # in a CUDA graph; not if it reads values on the host
    tolerance: Tolerance | None = None  # its own, if it rounds what the op does not
    # Every row has the same bits whatever the other rows and their number: one order of summation for all calls.
    is_row_invariant: bool = False
    # Opens a session for a call; what it returns does the host's part, and returns the rest, which can be captured:
    # benchmarks time both apart.
    plan: Callable[P, Callable[[], Callable[[], R]]] | None = None


def _rounds_activations(reference: Callable[..., Any]) -> bool:
    """Returns whether the reference takes operands with a field `activation`."""
    parameters = inspect.signature(reference, eval_str=True).parameters
    kinds = [parameter.annotation for parameter in parameters.values()]
    takes_operands = len(kinds) == 1 and isinstance(kinds[0], type) and issubclass(kinds[0], Operands)
    return takes_operands and any(part.name == "activation" for part in fields(kinds[0]))


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
    reference_accepts: Callable[P, str | None] | None = None
    keeps_choice: bool = False
    implementations: dict[str, Implementation[P, R]] = field(default_factory=dict)
    make_samples: Callable[[torch.device], Iterator[Sample]] | None = None
    make_device_code: Callable[[tuple[int, int]], Iterator[DeviceCode | CudaCode]] | None = None
    order: tuple[str, ...] = ()  # measured preference, best first; if none of these can run, the reference does
    make_workloads: MakeWorkloads | None = None
    profile: OpProfile | None = None
    replaces: tuple[Op[Any, Any], ...] = ()  # ops of the network whose work this one does in a decoding step
    combines: tuple[Op[Any, Any], ...] = ()  # ops that do the work of this one together
    refused_names: dict[str, str] = field(default_factory=dict)  # part of a name -> why there is no implementation
    reference_is_row_invariant: bool = False  # on every device
    rows: Rows | None = None  # how calls are taken apart into rows; None: rows were never declared
    rounds_activations: bool = field(init=False)  # to the format in the field `activation` of its operands

    def __post_init__(self) -> None:
        self.implementations[REFERENCE] = Implementation(
            REFERENCE,
            self.reference,
            anywhere,
            self.reference_accepts,
            is_row_invariant=self.reference_is_row_invariant,
        )
        self.rounds_activations = _rounds_activations(self.reference)

    def find_activation(self, args: tuple[Any, ...]) -> str:
        """Returns what a call rounds activations to, empty if the op rounds none."""
        return str(args[0].activation) if self.rounds_activations else ""

    def implementation(
        self,
        name: str,
        *,
        needs: Needs,
        accepts: Callable[P, str | None] | None = None,
        reads_fed: bool = False,
        pack: Pack | None = None,
        can_capture: bool = True,
        tolerance: Tolerance | None = None,
        is_row_invariant: bool = False,
        plan: Callable[P, Callable[[], Callable[[], R]]] | None = None,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        def add(function: Callable[P, R]) -> Callable[P, R]:
            self.implementations[name] = Implementation(
                name, function, needs, accepts, reads_fed, pack, can_capture, tolerance, is_row_invariant, plan
            )
            return function

        return add

    def samples(self, function: Callable[[torch.device], Iterator[Sample]]) -> None:
        self.make_samples = function

    def workloads(self, function: MakeWorkloads) -> None:
        """Lists how a model uses the op at M tokens, for benchmarks: function(shapes, m, activation)."""
        self.make_workloads = function

    def device_code(self, function: Callable[[tuple[int, int]], Iterator[DeviceCode | CudaCode]]) -> None:
        """Lists what the implementations launch on a GPU of the given compute capability."""
        self.make_device_code = function

    def prefer(self, *names: str) -> None:
        if unknown := set(names) - set(self.implementations):
            raise ValueError(f"{self.name} has no implementation {sorted(unknown)}")
        self.order = names

    def choose(
        self,
        device: DeviceSpec,
        asked: str | None,
        ledger: Ledger,
        required: Requirement | None = None,
        activation: str = "bf16",
        *,
        invariant: bool = False,
    ) -> Chosen[P, R]:
        """Chooses what may run: the variants of what was asked for as defined, or else the preferred order.

        With `invariant`, only one implementation may run, whose rows do not depend on each other.
        """
        if invariant:
            asked_for = None if asked is None else self._usable(device, asked)
            only = keep_invariant(self, device, asked, asked_for)
            candidates, runnable = [only], [only]
        else:
            candidates = self._usable(device, asked)
            runnable = _select_runnable(device, self.implementations.values())
        names = {candidate.name for candidate in candidates}
        others = [way.name for way in runnable if way.name not in names]
        chosen = Chosen(self, candidates, ledger, tuple(others), required, activation)
        if required is not None and not any(required.names(candidate.name) for candidate in chosen.candidates):
            raise KernelError(f"{required} is required, but {self._why_not(device, required, chosen)}")
        return chosen

    def _usable(self, device: DeviceSpec, asked: str | None) -> list[Implementation[P, R]]:
        if asked is None:
            preferred = [self.implementations[name] for name in self.order]
            return _select_runnable(device, preferred) or [self.implementations[REFERENCE]]
        if usable := _select_runnable(device, self._find_named(asked)):
            return usable
        if why := self.lacks(device, asked):
            raise KernelError(f"{self.name}={asked} {why}; here there is {self.list_runnable(device)}")
        raise KernelError(f"{self.name} has no implementation {asked!r}; it has {self.list_runnable(device)}")

    def lacks(self, device: DeviceSpec, name: str) -> str | None:
        """Returns why a known implementation or family does not run here; None if it does, or is unknown."""
        if named := self._find_named(name):
            return explain_lack(named, device)
        return next((why for part, why in self.refused_names.items() if part in name), None)

    def _find_named(self, name: str) -> list[Implementation[P, R]]:
        """Returns the implementation, or those of a family but not the invariant one, which is named in full."""
        return [
            way
            for full, way in self.implementations.items()
            if full == name or (full.partition(":")[0] == name and not full.endswith(INVARIANT))
        ]

    def _why_not(self, device: DeviceSpec, required: Requirement, chosen: Chosen[P, R]) -> str:
        if why := self.lacks(device, required.implementation):
            return f"it {why}; here there is {self.list_runnable(device)}"
        if not self._find_named(required.implementation):
            return f"{self.name} has only {', '.join(self.implementations)}"
        would = ", ".join(candidate.name for candidate in chosen.candidates)
        return f"{would} would run: add --kernels {self.name}={required.implementation}"

    def list_runnable(self, device: DeviceSpec) -> str:
        return ", ".join(way.name for way in _select_runnable(device, self.implementations.values()))


def _select_runnable(
    device: DeviceSpec, implementations: Iterable[Implementation[P, R]]
) -> list[Implementation[P, R]]:
    return [way for way in implementations if way.needs(device) is None]


def define_op(
    *,
    bytes: Callable[P, int],
    tolerance: Tolerance,
    accepts: Callable[P, str | None] | None = None,
    keeps_choice: bool = False,
    profile: OpProfile | None = None,
    replaces: tuple[Op[Any, Any], ...] = (),
    combines: tuple[Op[Any, Any], ...] = (),
    rows: Rows | None = None,
    is_row_invariant: bool = False,
) -> Callable[[Callable[P, R]], Op[P, R]]:
    """Turns a reference into the op of the same name; `accepts` says which arguments even the reference refuses.

    `keeps_choice` promises that `make_key` covers what the `accepts` of its implementations read of a call, so that
    they are asked once about calls with equal keys. `is_row_invariant` is a promise of the reference.
    """

    def define(reference: Callable[P, R]) -> Op[P, R]:
        return Op(
            reference.__name__,
            reference,
            bytes,
            tolerance,
            accepts,
            keeps_choice,
            profile=profile,
            replaces=replaces,
            combines=combines,
            reference_is_row_invariant=is_row_invariant,
            rows=rows,
        )

    return define

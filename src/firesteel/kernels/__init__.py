"""The ops that a model calls, each bound to the implementation that runs on its device (`Kernels`).

The choice follows the user's pins or the measured preference.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

from firesteel.device import DeviceSpec
from firesteel.errors import KernelError
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.op.chosen import Chosen
from firesteel.kernels.op.op import REFERENCE, Op
from firesteel.kernels.op.requirement import Requirement
from firesteel.kernels.operands.activation import lacks_native
from firesteel.kernels.ops.attention import attention
from firesteel.kernels.ops.draw import draw
from firesteel.kernels.ops.linear import linear
from firesteel.kernels.ops.moe_matmul import moe_matmul
from firesteel.kernels.ops.rms_norm import rms_norm
from firesteel.kernels.ops.rms_norm_fed import rms_norm_fed
from firesteel.kernels.ops.rope_kv_write import rope_kv_write
from firesteel.kernels.ops.route import route
from firesteel.kernels.proof.prove import check_here
from firesteel.kernels.registry import NETWORK_OPS, find_op

P = ParamSpec("P")
R = TypeVar("R")


class Kernels:
    """Every op of the network with its choice made for one device; calls go into `ledger`.

    `asked` chooses implementations, `required` says what must run in the end, with which machine code for the
    given `activation`. With `invariant`, every op has one implementation, whose rows do not depend on each other.
    """

    def __init__(
        self,
        device: DeviceSpec,
        asked: Mapping[str, str],
        ledger: Ledger,
        *,
        required: Mapping[str, Requirement] = MappingProxyType({}),
        activation: str = "bf16",
        invariant: bool = False,
    ) -> None:
        for name in (*asked, *required):
            find_op(name, NETWORK_OPS)
        if why := lacks_native(device.capability, activation):
            raise KernelError(f"activation {activation} {why}")
        self.ledger = ledger
        self.is_invariant = invariant

        def choose(op: Op[P, R]) -> Chosen[P, R]:
            return op.choose(
                device, asked.get(op.name), ledger, required.get(op.name), activation, invariant=invariant
            )

        self.rms_norm = choose(rms_norm)
        self.rms_norm_fed = choose(rms_norm_fed)
        self.linear = choose(linear)
        self.rope_kv_write = choose(rope_kv_write)
        self.attention = choose(attention)
        self.route = choose(route)
        self.moe_matmul = choose(moe_matmul)
        self.draw = choose(draw)
        _refuse_references([chosen for chosen in self._chosen() if chosen.op.name not in asked], device)
        for name, requirement in required.items():
            if requirement.verdict is not None:
                check_here(find_op(name), device, requirement, activation)

    def _chosen(self) -> list[Chosen[Any, Any]]:
        return [value for value in vars(self).values() if isinstance(value, Chosen)]

    def table(self) -> list[tuple[str, str]]:
        """Returns (op, implementations that may run, best first) for each op."""
        return [(chosen.op.name, ", ".join(_names(chosen))) for chosen in self._chosen()]


def _names(chosen: Chosen[Any, Any]) -> list[str]:
    return [candidate.name for candidate in chosen.candidates]


def _refuse_references(choices: list[Chosen[Any, Any]], device: DeviceSpec) -> None:
    """Raises if plain torch would run on a GPU without having been asked for."""
    plain = [chosen.op for chosen in choices if _names(chosen) == [REFERENCE]]
    if not device.is_cuda or not plain:
        return
    wanted = plain[0].order[0]
    why = plain[0].implementations[wanted].needs(device)
    pins = ",".join(f"{op.name}={REFERENCE}" for op in plain)
    raise KernelError(
        f"{device.name} has no kernels for {', '.join(op.name for op in plain)}: {wanted} {why}; to run "
        f"them in plain torch all the same, pass --kernels {pins}"
    )

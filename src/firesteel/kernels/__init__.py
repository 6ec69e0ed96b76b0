"""The ops, those of the network and others, and the table of what runs where; knows no model.

`Kernels` is what a model calls: each op bound to the device, by the user's pins or by measured preference.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

from firesteel.device import DeviceSpec
from firesteel.errors import KernelError
from firesteel.kernels.activation import lacks_native
from firesteel.kernels.attention import attention
from firesteel.kernels.decode_attention import decode_attention
from firesteel.kernels.decode_experts import decode_experts
from firesteel.kernels.decode_fc1 import decode_fc1
from firesteel.kernels.decode_fc2 import decode_fc2
from firesteel.kernels.decode_lm_head import decode_lm_head
from firesteel.kernels.decode_o import decode_o
from firesteel.kernels.decode_qkv import decode_qkv
from firesteel.kernels.decode_router import decode_router
from firesteel.kernels.decode_sample import decode_sample
from firesteel.kernels.draw import draw
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.linear import linear
from firesteel.kernels.moe_matmul import moe_matmul
from firesteel.kernels.op import REFERENCE, Chosen, Op
from firesteel.kernels.prove import check_here
from firesteel.kernels.quantize_mxfp8 import quantize_mxfp8
from firesteel.kernels.requirement import ALIASES, COVERED, Requirement
from firesteel.kernels.rms_norm import rms_norm
from firesteel.kernels.rms_norm_fed import rms_norm_fed
from firesteel.kernels.rope_kv_write import rope_kv_write
from firesteel.kernels.route import route

P = ParamSpec("P")
R = TypeVar("R")
NETWORK_OPS: tuple[Op[Any, Any], ...] = (
    rms_norm, rms_norm_fed, linear, rope_kv_write, attention, route, moe_matmul, draw,
)  # fmt: skip
DECODE_OPS: tuple[Op[Any, Any], ...] = (
    decode_qkv, decode_attention, decode_o, decode_router, decode_experts, decode_fc1, decode_fc2, decode_lm_head,
    decode_sample,
)  # fmt: skip
ALL_OPS: tuple[Op[Any, Any], ...] = (*NETWORK_OPS, quantize_mxfp8, *DECODE_OPS)


class Kernels:
    """Every op of the network with its choice made for one device; calls go into `ledger`.

    `asked` chooses implementations, `required` says what must run in the end, with which machine code for the
    given `activation`.
    """

    def __init__(
        self,
        device: DeviceSpec,
        asked: Mapping[str, str],
        ledger: Ledger,
        *,
        required: Mapping[str, Requirement] = MappingProxyType({}),
        activation: str = "bf16",
    ) -> None:
        for name in (*asked, *required):
            find_op(name, NETWORK_OPS)
        if why := lacks_native(device.capability, activation):
            raise KernelError(f"activation {activation} {why}")
        self.ledger = ledger

        def choose(op: Op[P, R]) -> Chosen[P, R]:
            return op.choose(device, asked.get(op.name), ledger, required.get(op.name), activation)

        self.rms_norm = choose(rms_norm)
        self.rms_norm_fed = choose(rms_norm_fed)
        self.linear = choose(linear)
        self.rope_kv_write = choose(rope_kv_write)
        self.attention = choose(attention)
        self.route = choose(route)
        self.moe_matmul = choose(moe_matmul)
        self.draw = choose(draw)
        _refuse_references([one for one in self._chosen() if one.op.name not in asked], device)
        for name, one in required.items():
            if one.verdict is not None:
                check_here(find_op(name), device, one, activation)

    def _chosen(self) -> list[Chosen[Any, Any]]:
        return [value for value in vars(self).values() if isinstance(value, Chosen)]

    def table(self) -> list[tuple[str, str]]:
        """(op, implementations that may run, best first) for each op."""
        return [(one.op.name, ", ".join(candidate.name for candidate in one.candidates)) for one in self._chosen()]


def _refuse_references(chosen: list[Chosen[Any, Any]], device: DeviceSpec) -> None:
    """On a GPU plain torch runs where it is asked for only."""
    plain = [one.op for one in chosen if [candidate.name for candidate in one.candidates] == [REFERENCE]]
    if not device.is_cuda or not plain:
        return
    wanted = plain[0].order[0]
    why = plain[0].implementations[wanted].needs(device)
    pins = ",".join(f"{op.name}={REFERENCE}" for op in plain)
    raise KernelError(
        f"{device.name} has no kernels for {', '.join(op.name for op in plain)}: {wanted} {why}; to run "
        f"them in plain torch all the same, pass --kernels {pins}"
    )


def find_op(name: str, among: tuple[Op[Any, Any], ...] = ALL_OPS) -> Op[Any, Any]:
    """By name or alias."""
    found = {op.name: op for op in among}
    wanted = ALIASES.get(name, name)
    if wanted not in found:
        near = difflib.get_close_matches(name, found, n=1, cutoff=0)[0]
        raise KernelError(f"there is no op {name!r}; did you mean {near}? Ops: {', '.join(found)}")
    return found[wanted]


def parse_pins(text: str) -> dict[str, str]:
    """{op: implementation} of "OP=IMPLEMENTATION,...", and of the ops covered; one an op."""
    found: dict[str, str] = {}
    for pin in filter(str.strip, text.split(",")):
        name, implementation = pin.strip().split("=")
        op = ALIASES.get(name, name)
        if op in found:
            raise KernelError(f"{op} is pinned twice: to {found[op]} and to {implementation}")
        found[op] = implementation
    return {other: found[op] for op in found for other in COVERED.get(op, ())} | found

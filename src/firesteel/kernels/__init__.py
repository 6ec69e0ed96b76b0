"""The ops of the network and the table of what runs where; knows no model.

`Kernels` is what a model calls: each op bound to the device, by the user's pins or by measured preference.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from firesteel.device import DeviceSpec
from firesteel.kernels.attention import attention
from firesteel.kernels.kv_write import kv_write
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.linear import linear
from firesteel.kernels.moe_matmul import moe_matmul
from firesteel.kernels.op import Chosen, KernelError, Op
from firesteel.kernels.rms_norm import rms_norm
from firesteel.kernels.rope import rope
from firesteel.kernels.route import route

ALL_OPS: tuple[Op[Any, Any], ...] = (rms_norm, linear, rope, kv_write, attention, route, moe_matmul)


class Kernels:
    """Every op with its choice made for one device; calls go into `ledger`."""

    def __init__(self, device: DeviceSpec, asked: Mapping[str, str], ledger: Ledger) -> None:
        names = [op.name for op in ALL_OPS]
        for name in asked:
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1, cutoff=0)[0]
                raise KernelError(f"there is no op {name!r}; did you mean {near}? Ops: {', '.join(names)}")
        self.ledger = ledger
        self.rms_norm = rms_norm.choose(device, asked.get("rms_norm"), ledger)
        self.linear = linear.choose(device, asked.get("linear"), ledger)
        self.rope = rope.choose(device, asked.get("rope"), ledger)
        self.kv_write = kv_write.choose(device, asked.get("kv_write"), ledger)
        self.attention = attention.choose(device, asked.get("attention"), ledger)
        self.route = route.choose(device, asked.get("route"), ledger)
        self.moe_matmul = moe_matmul.choose(device, asked.get("moe_matmul"), ledger)

    def table(self) -> list[tuple[str, str]]:
        """(op, implementations that may run, best first) for each op."""
        chosen = [value for value in vars(self).values() if isinstance(value, Chosen)]
        return [(one.op.name, ", ".join(candidate.name for candidate in one.candidates)) for one in chosen]


def parse_pins(text: str) -> dict[str, str]:
    """{op: implementation} of "OP=IMPLEMENTATION,..."."""
    return dict(pin.strip().split("=") for pin in text.split(",") if pin.strip())

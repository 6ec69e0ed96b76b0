"""The registry of ops: all of them, those of the network and those of a decoding step, found by name.

An op is one line in a tuple here, beside its own file and its device code.
"""

from __future__ import annotations

import difflib
from typing import Any

from firesteel.errors import KernelError
from firesteel.kernels.decode.attention import decode_attention
from firesteel.kernels.decode.experts import decode_experts
from firesteel.kernels.decode.fc1 import decode_fc1
from firesteel.kernels.decode.fc2 import decode_fc2
from firesteel.kernels.decode.lm_head import decode_lm_head
from firesteel.kernels.decode.o import decode_o
from firesteel.kernels.decode.qkv import decode_qkv
from firesteel.kernels.decode.router import decode_router
from firesteel.kernels.decode.sample import decode_sample
from firesteel.kernels.op.op import Op
from firesteel.kernels.op.requirement import ALIASES, COVERED
from firesteel.kernels.ops.attention import attention
from firesteel.kernels.ops.draw import draw
from firesteel.kernels.ops.linear import linear
from firesteel.kernels.ops.moe_matmul import moe_matmul
from firesteel.kernels.ops.quantize_mxfp8 import quantize_mxfp8
from firesteel.kernels.ops.rms_norm import rms_norm
from firesteel.kernels.ops.rms_norm_fed import rms_norm_fed
from firesteel.kernels.ops.rope_kv_write import rope_kv_write
from firesteel.kernels.ops.route import route

NETWORK_OPS: tuple[Op[Any, Any], ...] = (
    rms_norm,
    rms_norm_fed,
    linear,
    rope_kv_write,
    attention,
    route,
    moe_matmul,
    draw,
)
DECODE_OPS: tuple[Op[Any, Any], ...] = (
    decode_qkv,
    decode_attention,
    decode_o,
    decode_router,
    decode_experts,
    decode_fc1,
    decode_fc2,
    decode_lm_head,
    decode_sample,
)
ALL_OPS: tuple[Op[Any, Any], ...] = (*NETWORK_OPS, quantize_mxfp8, *DECODE_OPS)


def find_op(name: str, among: tuple[Op[Any, Any], ...] | None = None) -> Op[Any, Any]:
    """Looks up an op by name or alias, among all ops or those given."""
    ops = {op.name: op for op in (ALL_OPS if among is None else among)}
    wanted = ALIASES.get(name, name)
    if wanted not in ops:
        near = difflib.get_close_matches(name, ops, n=1, cutoff=0)[0]
        raise KernelError(f"there is no op {name!r}; did you mean {near}? Ops: {', '.join(ops)}")
    return ops[wanted]


def list_replacements() -> dict[str, tuple[str, ...]]:
    """Returns, by op of the network, the decode ops that run in its place in a decoding step.

    "a|b" means one of the two, depending on the model's shape.
    """
    combined = [part.name for op in DECODE_OPS for part in op.combines]
    table: dict[str, tuple[str, ...]] = {}
    for op in DECODE_OPS:
        for replaced in op.replaces if op.name not in combined else ():
            parts = [part.name for part in op.combines if replaced in part.replaces]
            names = [f"{op.name}|{part}" for part in parts] or [op.name]
            table[replaced.name] = (*table.get(replaced.name, ()), *names)
    return table


def parse_pins(text: str) -> dict[str, str]:
    """Parses "OP=IMPLEMENTATION,..." to {op: implementation}, with the ops that those cover; one pin per op."""
    pins: dict[str, str] = {}
    for pin in filter(str.strip, text.split(",")):
        name, implementation = pin.strip().split("=")
        op = ALIASES.get(name, name)
        if op in pins:
            raise KernelError(f"{op} is pinned twice: to {pins[op]} and to {implementation}")
        pins[op] = implementation
    return {other: pins[op] for op in pins for other in COVERED.get(op, ())} | pins

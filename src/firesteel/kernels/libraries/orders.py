"""Orders of the experts other than the checkpoint's, by the implementation of moe_matmul that reads them."""

from __future__ import annotations

import functools
from collections.abc import Callable

from firesteel.kernels.libraries.flashinfer_experts import FlashinferExperts
from firesteel.kernels.libraries.flashinfer_moe import KINDS
from firesteel.kernels.libraries.hopper_experts import HopperExperts
from firesteel.kernels.operands.weights import Experts

OrderedExperts = HopperExperts | FlashinferExperts
EXPERT_ORDERS: dict[str, Callable[[Experts], OrderedExperts]] = {
    "triton_kernels": HopperExperts.pack,
    **{f"flashinfer:{kind}": functools.partial(FlashinferExperts.pack, kind=kind) for kind in KINDS},
}


def name_order(experts: Experts | OrderedExperts) -> str:
    """Returns whose order the experts are in, as refusals name it."""
    if isinstance(experts, Experts):
        return "the checkpoint"
    return f"flashinfer:{experts.kind}" if isinstance(experts, FlashinferExperts) else "triton_kernels"

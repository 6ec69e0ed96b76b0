"""What kernel libraries ask of the engine: experts in their order, and steps that are not captured."""

from __future__ import annotations

from dataclasses import replace

import torch

from firesteel.config import KernelConfig
from firesteel.device import GIB, DeviceSpec
from firesteel.errors import UserError
from firesteel.kernels import Kernels
from firesteel.kernels.libraries.orders import EXPERT_ORDERS
from firesteel.kernels.operands.weights import Experts
from firesteel.model.spec import ModelSpec
from firesteel.model.weights import Weights, empty_weights


def order_experts(weights: Weights, kernels: Kernels) -> None:
    """Puts the experts in the order that moe_matmul reads, layer by layer, so that only one copy is held."""
    pack = EXPERT_ORDERS.get(kernels.moe_matmul.candidates[0].name)
    if pack is None:
        return
    for number, layer in enumerate(weights.layers):
        if isinstance(layer.experts, Experts):
            weights.layers[number] = replace(layer, experts=pack(layer.experts))


def check_expert_order(spec: ModelSpec, kernels: Kernels, *, is_fused: bool) -> None:
    """Raises if decoding steps would read the experts in the checkpoint's order, but moe_matmul in another."""
    name = kernels.moe_matmul.candidates[0].name
    if not is_fused or name not in EXPERT_ORDERS:
        return
    raise UserError(
        f"moe_matmul={name} holds the experts in an order of its own, but the fused ops of decoding steps read the "
        f"checkpoint's, and a second copy would take {experts_bytes(spec) / GIB:.1f} GiB: leave the decode_* ops "
        f"out of --kernels and --require; decoding steps then run op by op, with moe_matmul={name}"
    )


def check_dense_order(kernels: Kernels) -> None:
    """Raises if linear reads dense weights in an order of its own, which the engine does not hold."""
    chosen = kernels.linear.candidates[0]
    if chosen.pack is not None:
        raise UserError(
            f"linear={chosen.name} reads dense weights in an order of its own, and the engine holds one copy, in "
            "the order of the checkpoint: nothing reorders them after loading, the fused ops of decoding steps and "
            "draft networks read that order, and layers with bf16 weights or activations would have no "
            "implementation: leave it out of --kernels; firesteel verify and firesteel bench ops run it"
        )


def check_capture(kernels: Kernels, config: KernelConfig, device: DeviceSpec) -> None:
    """Raises if steps would be captured in CUDA graphs with an implementation that cannot be."""
    chosen = kernels.attention.candidates[0]
    if device.is_cuda and config.cuda_graphs and not chosen.can_capture:
        raise UserError(
            f"attention={chosen.name} reads lengths on the host and cannot be part of a CUDA graph: add "
            "--enforce-eager"
        )


def experts_bytes(spec: ModelSpec) -> int:
    """Returns the bytes of the experts of all layers."""
    layers = empty_weights(spec, torch.device("meta")).layers
    return sum(layer.experts.expert_bytes * spec.num_experts for layer in layers)

"""Random weights of any spec, made on the device, equal for equal seeds with one version of torch.

torch 2.11 and 2.15 draw different bf16 values.

They are scaled so that activations stay finite through all layers and tokens spread over the experts: every matrix
has about unit gain, and router logits have a standard deviation of about one. In a deep network each layer adds
less to the residual. Otherwise attention's averages, which are similar for all tokens, would lead all tokens to the
same experts, and a different expert chosen because of rounding alone would change everything after it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from firesteel.device import DeviceSpec
from firesteel.model.spec import GROUP, ModelSpec
from firesteel.model.weights import Weights, check_memory, empty_weights, named_tensors, weight_bytes

E2M1_RMS = 2.93  # RMS of uniformly drawn codes
FEW_LAYERS = 4
SINK_RANGE = (-2.0, 5.75)  # range in the public checkpoints


def synthetic_weights(spec: ModelSpec, device: DeviceSpec, *, seed: int, reserve_gib: float = 0.0) -> Weights:
    """Returns random weights after checking that they fit and leave `reserve_gib` free."""
    check_memory(weight_bytes(spec), device, reserve_gib)
    weights = empty_weights(spec, device.torch_device)
    for number, (name, tensor) in enumerate(named_tensors(weights, spec).items()):
        draw_tensor(name, tensor, spec, seed=seed, number=number)
    return weights


def draw_tensor(name: str, tensor: Tensor, spec: ModelSpec, *, seed: int, number: int) -> None:
    """Fills tensor `number` of the network, a whole one, with random values."""
    generator = torch.Generator(tensor.device).manual_seed((seed << 20) + number)
    adds = ".o_proj." in name or ".down_proj_" in name
    _fill(name, tensor, generator, gain_log2(spec.num_layers) if adds else 0)


def gain_log2(num_layers: int) -> int:
    """Returns log2 of the gain of what a layer adds: about 1 / sqrt(2 * layers), so the sum stays about one.

    Networks of few layers keep unit gain.
    """
    return -round(math.log2(2 * num_layers) / 2) if num_layers > FEW_LAYERS else 0


def _fill(name: str, tensor: Tensor, generator: torch.Generator, power: int) -> None:
    if name.endswith("_blocks"):
        _random_bytes(tensor, generator)
    elif name.endswith("_scales"):
        columns = tensor.shape[-1] * GROUP
        middle = round(127 - math.log2(E2M1_RMS * columns**0.5))
        _random_bytes(tensor, generator)
        tensor.bitwise_and_(1).add_(middle - 1 + power)
    elif name.endswith("norm.weight"):
        tensor.uniform_(0.5, 1.5, generator=generator)
    elif name.endswith("sinks"):
        tensor.uniform_(*SINK_RANGE, generator=generator)
    elif name.endswith("bias"):
        tensor.normal_(0, 0.1 * 2.0**power, generator=generator)
    elif name == "model.embed_tokens.weight":
        tensor.normal_(0, 1, generator=generator)
    else:
        tensor.normal_(0, tensor.shape[-1] ** -0.5 * 2.0**power, generator=generator)


def _random_bytes(tensor: Tensor, generator: torch.Generator) -> None:
    """Fills with random bytes, eight per draw: drawing single bytes would dominate the start of a 120b model."""
    flat = tensor.view(-1)
    if flat.storage_offset() % 8:  # k or v of a narrow fused matrix
        flat.random_(0, 256, generator=generator)
        return
    words = flat[: flat.numel() // 8 * 8].view(torch.int64)
    words.random_(-(2**63), None, generator=generator)
    flat[words.numel() * 8 :].random_(0, 256, generator=generator)

"""Checks of what prompts' activations are rounded to, before weights are read."""

from __future__ import annotations

from firesteel.config import Config, KernelConfig
from firesteel.device import DeviceSpec
from firesteel.engine.limits import find_budget
from firesteel.errors import KernelError, UserError
from firesteel.kernels import Kernels
from firesteel.kernels.op.op import REFERENCE
from firesteel.kernels.operands.activation import FP8, is_native, lacks_native
from firesteel.kernels.registry import parse_pins
from firesteel.kernels.tiles.tile_pin import AUTO
from firesteel.kernels.wgmma import e4m3
from firesteel.kernels.wgmma.bf16 import MOST_PAIRS
from firesteel.model.decode_ops import split_choices
from firesteel.model.spec import ModelSpec

# Begins the names of moe_matmul's implementations that number pairs in 16 bits, or take few tokens.
BOUNDED = "cuda:"
FP8_NAME = e4m3.NAMES[1]  # of the only implementation that takes FP8 activations, beside the reference


def check_prompt_activation(device: DeviceSpec, config: KernelConfig) -> None:
    """Raises if prompts are to be rounded otherwise than decoded tokens, but the GPU would not gain from it."""
    asked = config.prefill_activation
    if asked in (AUTO, "bf16", config.activation):
        return
    if asked == FP8:
        _check_fp8(device, config)
        return
    if not is_native(device.capability, asked):
        raise KernelError(
            f"--prefill-activation {asked} is for GPUs that multiply it natively (SM12x), this is {device.name}: "
            f"leave it out, or round all activations with --activation {asked}"
        )
    if why := lacks_native(device.capability, asked):
        raise KernelError(f"--prefill-activation {asked} {why}, or --prefill-activation bf16")


def _check_fp8(device: DeviceSpec, config: KernelConfig) -> None:
    """Raises unless this is a Hopper, which multiplies FP8, or a CPU, which rounds to it to measure quality."""
    if device.is_cuda and device.capability != (9, 0):
        native = is_native(device.capability, "mxfp8")
        cure = "--prefill-activation mxfp8" if native else "leave it out"
        raise KernelError(
            f"--prefill-activation {FP8} multiplies experts with Hopper's matrix instructions (compute capability "
            f"9.0), this is {device.name}: {cure}"
        )
    if config.activation != "bf16":
        raise KernelError(
            f"--prefill-activation {FP8} is for experts that decode with bf16 activations, not with --activation "
            f"{config.activation}: leave one of them out"
        )


def check_step_size(spec: ModelSpec, kernels: Kernels, config: Config, device: DeviceSpec) -> None:
    """Raises if no implementation computes the experts of the largest step that prompts may have."""
    if not device.is_cuda:
        return
    names = [candidate.name for candidate in kernels.moe_matmul.candidates]
    pins = parse_pins(split_choices(config.kernels.kernels)[0])
    cause = f"moe_matmul={pins.get('moe_matmul', names[0])}"  # as it was asked for: the name may be a family's
    if config.kernels.prefill_activation == FP8:
        cause = f"--prefill-activation {FP8}"
        if not (takers := [name for name in names if name in (FP8_NAME, REFERENCE)]):
            raise UserError(f"{cause} is computed by moe_matmul={FP8_NAME}, not {names[0]}: leave one of them out")
        names = takers
    most, budget = MOST_PAIRS // spec.num_active, find_budget(config.batch, device)
    if budget > most and all(name.startswith(BOUNDED) for name in names):
        raise UserError(
            f"{cause} computes the experts of at most {most} tokens per step, and max_num_batched_tokens is "
            f"{budget}: lower it to {most}, or leave {cause} out"
        )

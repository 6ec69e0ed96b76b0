"""The expert MLP by FlashInfer's `cutlass_fused_moe`: routing, two matmuls with SwiGLU, and the weighted sum.

For Hopper it multiplies MXFP4 weights with bf16 activations, or with E4M3 ones that have a scale per token
("Humming": exponents of scales are folded into the weights before the product); for Blackwell with MXFP8 ones. Its
tiles are chosen by time, at the first call with about as many tokens, among those that fit: a tile whose columns do
not divide those of the weights reads behind them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from firesteel.config.environment import current
from firesteel.device import DeviceSpec, count_sms, find_capability
from firesteel.errors import KernelError
from firesteel.kernels.ahead import current_ahead
from firesteel.kernels.libraries.flashinfer import import_flashinfer, lacks_flashinfer, note_call
from firesteel.kernels.libraries.flashinfer_experts import FlashinferExperts
from firesteel.kernels.op.op import Needs

# What activations are rounded to -> compute capabilities, in words
GPUS = {"bf16": "SM90 (Hopper)", "fp8": "SM90 (Hopper)", "mxfp8": "SM10x and SM12x (Blackwell)"}
MAJORS = {"bf16": (9,), "fp8": (9,), "mxfp8": (10, 12)}
KINDS = tuple(GPUS)
H20_SMS = 78  # FlashInfer has no other sign of an H20
TRIALS = 3  # timed calls of a tile, of which the shortest counts
Profile = tuple[int, int]  # numbers of the tiles of both matmuls
_profiles: dict[ProfileKey, Profile] = {}


class ProfileKey(NamedTuple):
    """Calls for which the same tiles are used."""

    kind: str
    tokens: int  # rounded up to a power of two
    active: int
    values: torch.Size  # of gate_up
    device: torch.device


def moe_ready(kind: str) -> Needs:
    """Requires the package, what it imports, a compiler unless it was compiled ahead, and a GPU for the kind."""

    def needs(device: DeviceSpec) -> str | None:
        major = 0 if device.capability is None else device.capability[0]
        if why := lacks_flashinfer(name_module(device.capability or (0, 0), device.num_sms)):
            return why
        if major not in MAJORS[kind]:
            return f"multiplies {kind} activations on {GPUS[kind]}, this is {device.name}"
        return None

    return needs


def name_module(capability: tuple[int, int], num_sms: int) -> str:
    """Returns FlashInfer's name of the compiled module for a GPU.

    The H20 has a variant of its own, which FlashInfer chooses by the number of SMs, unless it may not compile.
    """
    major, minor = capability
    if capability == (9, 0) and num_sms == H20_SMS and not current(None).get("FLASHINFER_DISABLE_JIT"):
        return "fused_moe_90_h20_prebuilt_d"
    return f"fused_moe_{major}{0 if major == 12 else minor}"


def run(x: Tensor, ids: Tensor, weights: Tensor, experts: FlashinferExperts, alpha: float, limit: float) -> Tensor:
    """Ids that are negative add nothing, as experts of another GPU would."""
    if current_ahead() is not None:
        return torch.empty_like(x)  # the library compiles when it launches
    call = prepare_call(x, ids, weights, experts, alpha, limit)
    key = ProfileKey(
        experts.kind, 1 << (x.shape[0] - 1).bit_length(), ids.shape[1], experts.gate_up_values.shape, x.device
    )
    if key not in _profiles:
        if x.is_cuda and torch.cuda.is_current_stream_capturing():
            raise KernelError(
                f"moe_matmul=flashinfer:{experts.kind} chooses tiles by time, which a capture does not allow: call "
                f"it once with {x.shape[0]} tokens before"
            )
        _profiles[key] = choose_profile(call, *list_tiles(experts, ids.shape[1]))
    y = call(_profiles[key])
    name = name_module(find_capability(x.device) or (9, 0), count_sms(x.device))
    note_call(import_flashinfer(), name, f"{name} {experts.kind}")
    return y[:, : experts.hidden].contiguous()


def prepare_call(
    x: Tensor, ids: Tensor, weights: Tensor, experts: FlashinferExperts, alpha: float, limit: float
) -> Callable[[Profile], Tensor]:
    """Returns the call of the library as a function of the tiles; it returns y with the columns of padding."""
    library = import_flashinfer()
    num_experts, columns = experts.down_bias.shape
    x = torch.nn.functional.pad(x, (0, columns - x.shape[1]))
    options: dict[str, Any] = dict.fromkeys(("use_w4_group_scaling",), True)
    scales = [experts.gate_up_scales.view(torch.int32), experts.down_scales.view(torch.int32)]
    values = [experts.gate_up_values, experts.down_values]
    if experts.kind == "fp8":
        one = _fill(num_experts, 1.0, x.device)
        scales = [scales[0], _known(experts.gate_up_residual), one, scales[1], _known(experts.down_residual)]
        options["use_wfp4afp8_humming"] = True
    elif experts.kind == "mxfp8":
        one = _fill(num_experts, 1.0, x.device)
        up, down = (
            part.view(packed.shape[0], packed.shape[1], -1) for part, packed in zip(scales, values, strict=True)
        )
        scales, values = [up, one, down, one], [packed.view(torch.int64) for packed in values]
        x, input_scales = library.mxfp8_quantize(x, True, 32)
        options = {"use_mxfp8_act_scaling": True, "input_sf": input_scales}
    small_ids = ids.int()

    def call(profile: Profile) -> Tensor:
        y = torch.empty(small_ids.shape[0], columns, dtype=torch.bfloat16, device=x.device)
        library.fused_moe.cutlass_fused_moe(
            x,
            small_ids,
            weights,
            *values,
            torch.bfloat16,
            quant_scales=scales,
            fc1_expert_biases=experts.gate_up_bias,
            fc2_expert_biases=experts.down_bias,
            swiglu_alpha=_fill(num_experts, alpha, x.device),
            swiglu_beta=_fill(num_experts, 1.0, x.device),
            swiglu_limit=_fill(num_experts, limit, x.device),
            output=y,
            use_fused_finalize=False,  # fused, sums are atomic, and the same inputs can give other bits
            profile_ids=list(profile),
            **options,
        )
        return y

    return call


def choose_profile(call: Callable[[Profile], Tensor], first: Sequence[int], second: Sequence[int]) -> Profile:
    """Returns the fastest tile of each matmul; tiles that raise, because they were not built, are left out."""
    # Both lists are mostly of the same tiles in the same order, so a pair of built ones is found early.
    pairs = itertools.chain(zip(first, second, strict=False), itertools.product(first, second))
    found = next((pair for pair in pairs if _runs(call, pair) is None), None)
    if found is None:
        why = _runs(call, (first[0], second[0])) if first and second else "none fits these sizes"
        raise KernelError(f"no tile of FlashInfer's matmuls runs here: {why}")
    ups = [up for up in first if _runs(call, (up, found[1])) is None]
    downs = [down for down in second if _runs(call, (found[0], down)) is None]
    up = min(ups, key=lambda up: _time(call, (up, found[1])))
    return up, min(downs, key=lambda down: _time(call, (up, down)))


def _runs(call: Callable[[Profile], Tensor], profile: Profile) -> str | None:
    """Returns why the library does not launch these tiles, or None once they have run."""
    try:
        call(profile)
        synchronize()
    except torch.OutOfMemoryError:
        raise  # not a tile that was left out
    except torch.AcceleratorError as error:
        raise KernelError(
            f"tiles {profile} of FlashInfer's matmuls ended with an error of the GPU, and this process cannot use "
            f"the GPU any more: {error}"
        ) from error
    except RuntimeError as error:
        return str(error)
    return None


def synchronize() -> None:
    """Waits for the GPU, if there is one: an error of a kernel is raised here, not at a later call."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def list_tiles(experts: FlashinferExperts, active: int) -> tuple[list[int], list[int]]:
    """Returns the numbers of the tiles of both matmuls that fit the sizes of the weights.

    The library checks no tile that it is told to use. On Hopper one whose columns do not divide the weights' reads
    codes and scales of the next row, and of the last expert's last row what lies behind the weights.
    """
    runner = find_runner(experts, active)
    first, second = (
        [
            tile
            for tile in runner.get_valid_tactics_for_shape(matmul, values.shape[1], 2 * values.shape[2])
            if runner.get_tactic_occupancy(tile) > 0
        ]
        for matmul, values in ((1, experts.gate_up_values), (2, experts.down_values))
    )
    return first, second


def find_runner(experts: FlashinferExperts, active: int) -> Any:
    """Returns the part of the library that knows the tiles of both matmuls."""
    library, is_mxfp8, is_fp8 = import_flashinfer(), experts.kind == "mxfp8", experts.kind == "fp8"
    types = (torch.float8_e4m3fn, torch.int64) if is_mxfp8 else (torch.bfloat16, torch.uint8)
    num_experts, columns = experts.down_bias.shape
    library.fused_moe.cutlass_fused_moe_workspace_size(  # makes it
        *(1, columns, 2 * experts.down_values.shape[2], num_experts, active),
        x_dtype=types[0],
        weight_dtype=types[1],
        use_w4_group_scaling=not is_mxfp8,
        use_mxfp8_act_scaling=is_mxfp8,
        use_fused_finalize=False,
        use_wfp4afp8_humming=is_fp8,
        device=experts.down_bias.device,
    )
    capability = find_capability(experts.down_bias.device) or (0, 0)
    module = library.fused_moe.core.get_cutlass_fused_moe_module("".join(map(str, capability)))
    flags = (False, not is_mxfp8, is_mxfp8, False, False, is_fp8)
    return module.MoERunner.runner_dict[*types, torch.bfloat16, *flags]


def _time(call: Callable[[Profile], Tensor], profile: Profile) -> float:
    times: list[float] = []
    for _ in range(TRIALS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call(profile)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return min(times)


def _known(residual: Tensor | None) -> Tensor:
    assert residual is not None
    return residual


@functools.lru_cache(64)
def _fill(size: int, value: float, device: torch.device) -> Tensor:
    return torch.full((size,), value, dtype=torch.float32, device=device)

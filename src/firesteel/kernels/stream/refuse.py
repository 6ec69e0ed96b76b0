"""Reasons why the decode kernels do not take some operands. Each function returns the reason, or None."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from firesteel.kernels.operands.weights import Experts, Mxfp4Weight
from firesteel.kernels.stream.plan import ROUNDED, Machine, Streamed, find_machine
from firesteel.kernels.stream.ring import MOST_TOKENS

TYPE_NAMES = {torch.bfloat16: "bf16", torch.float32: "fp32", torch.int64: "int64"}


def refuse_here(x: Tensor, plan: Callable[[Machine], Streamed]) -> str | None:
    """Refuses if the GPU that holds x cannot run what is planned for it."""
    if not x.is_cuda:
        return None
    machine = find_machine(x.device)
    return plan(machine).refuse(machine)


def refuse_tokens(x: Tensor) -> str | None:
    """Refuses if x [T, ...] does not hold the tokens of one step."""
    if not 1 <= x.shape[0] <= MOST_TOKENS:
        return f"is for 1 to {MOST_TOKENS} tokens, not {x.shape[0]}"
    return None


def refuse_rounding(weight: Tensor | Mxfp4Weight | None, activation: str) -> str | None:
    """Refuses to round activations in this way before these weights; None stands for packed experts."""
    if activation == "bf16":
        return None
    if activation != ROUNDED:
        return f"rounds activations to {ROUNDED}, not to {activation}"
    return f"rounds activations to {ROUNDED} only before MXFP4 weights" if isinstance(weight, Tensor) else None


def refuse_types(*tensors: Tensor | None, wanted: torch.dtype = torch.bfloat16) -> str | None:
    """Refuses tensors of another type, which kernels would not notice."""
    wrong = [tensor.dtype for tensor in tensors if tensor is not None and tensor.dtype != wanted]
    return f"computes with {TYPE_NAMES[wanted]}, not {wrong[0]}" if wrong else None


def refuse_pages(k_pages: Tensor, v_pages: Tensor) -> str | None:
    """Refuses pages of a type that keys and values are not stored in."""
    allowed = (torch.bfloat16, torch.float8_e4m3fn)
    if k_pages.dtype in allowed and k_pages.dtype == v_pages.dtype:
        return None
    return f"keeps keys and values in bf16 or fp8 e4m3 pages, not in {k_pages.dtype} and {v_pages.dtype}"


def refuse_layout(*tensors: Tensor | None) -> str | None:
    """Refuses tensors that cannot be read sixteen bytes at a time."""
    if any(tensor.data_ptr() % 16 for tensor in tensors if tensor is not None):
        return "wants tensors that begin at a multiple of 16 bytes"
    return refuse_strides(*tensors)


def refuse_strides(*tensors: Tensor | None) -> str | None:
    """Refuses tensors that are not contiguous."""
    is_whole = all(tensor.is_contiguous() for tensor in tensors if tensor is not None)
    return None if is_whole else "wants contiguous tensors"


def refuse_expert_operands(x: Tensor, ids: Tensor, weights: Tensor, experts: Experts) -> str | None:
    """Refuses types and layouts of tokens and experts that no CUDA kernel of the experts reads."""
    return (
        refuse_types(x, experts.gate_up_bias, experts.down_bias)
        or refuse_types(weights, wanted=torch.float32)
        or refuse_types(ids, wanted=torch.int64)
        or refuse_layout(
            x,
            experts.gate_up_codes,
            experts.gate_up_scales,
            experts.gate_up_bias,
            experts.down_codes,
            experts.down_scales,
            experts.down_bias,
        )
        or refuse_strides(ids, weights)
    )

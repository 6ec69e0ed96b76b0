"""Attention by FlashInfer: the calls that it takes, and the call."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from firesteel.errors import KernelError
from firesteel.kernels.ahead import current_ahead
from firesteel.kernels.libraries.flashinfer import AttentionSession, AttentionShape, cut_pages, find_session
from firesteel.kernels.ops.attention_operands import AttentionOperands

DIM = 64  # of the heads: the name of a compiled module leaves it out, so that two sizes could be mistaken


def refuse(operands: AttentionOperands) -> str | None:
    """Returns why the library cannot take this call, or None."""
    q, k_pages = operands.q, operands.k_pages
    if {q.dtype, k_pages.dtype, operands.v_pages.dtype} != {torch.bfloat16}:
        return f"takes bf16 queries and pages, not {q.dtype} and {k_pages.dtype}"
    if q.shape[2] != DIM:
        return f"takes heads of {DIM} values, not {q.shape[2]}"
    if operands.value_scale != 1 or operands.scale * operands.key_scale <= 0:
        return "takes values without a scale, and products with a positive one"
    if q.stride(2) != 1 or k_pages.stride() != operands.v_pages.stride() or k_pages.stride(3) != 1:
        return "takes contiguous heads, keys and values laid out alike"
    return None


def run(backend: str, operands: AttentionOperands) -> Tensor:
    """Waits for the lengths, plans if they are new, and computes the rows that belong to requests."""
    q = operands.q
    if current_ahead() is not None:
        return torch.zeros(q.shape, dtype=q.dtype, device=q.device)  # lengths are not known before a step
    if q.is_cuda and torch.cuda.is_current_stream_capturing():
        raise KernelError(
            "attention=flashinfer reads lengths on the host and cannot be part of a CUDA graph: add --enforce-eager"
        )
    return _plan(operands, find_session(_find_shape(operands, backend)))()


def plan(backend: str, operands: AttentionOperands) -> Callable[[], Callable[[], Tensor]]:
    """Opens a session for this call, so that several calls can be planned before they are launched."""
    return functools.partial(_plan, operands, AttentionSession(_find_shape(operands, backend)))


def _find_shape(operands: AttentionOperands, backend: str) -> AttentionShape:
    q, k_pages = operands.q, operands.k_pages
    return AttentionShape(
        backend, q.shape[1], k_pages.shape[1], q.shape[2], k_pages.shape[2], operands.window, q.device
    )


def _plan(operands: AttentionOperands, session: AttentionSession) -> Callable[[], Tensor]:
    """Waits for the lengths and plans if they are new to the session; what it returns only launches."""
    q, k_pages = operands.q, operands.k_pages
    y = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    starts, lens = operands.query_starts.tolist(), operands.kv_lens.tolist()
    cut = cut_pages(starts, lens, k_pages.shape[2], operands.window)
    num_rows = cut.query_starts[-1]
    if not num_rows:
        return lambda: y
    scale = operands.scale * operands.key_scale
    session.plan(cut, operands.page_table, scale)
    sinks = make_sinks(operands)

    def launch() -> Tensor:
        session.run(q[:num_rows], (k_pages, operands.v_pages), sinks, scale, y[:num_rows])
        return y

    return launch


def make_sinks(operands: AttentionOperands) -> Tensor:
    """Returns the sinks in fp32; -inf adds nothing to the denominator."""
    if operands.sinks is not None:
        return operands.sinks.float()
    return torch.full((operands.q.shape[1],), float("-inf"), device=operands.q.device)

"""Runs the expert MLP with triton_kernels: routing, two matmuls with SwiGLU between them, and the weighted sum."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from firesteel.kernels.ahead import current_ahead
from firesteel.kernels.libraries.hopper_experts import HopperExperts
from firesteel.kernels.libraries.tokens import refuse_tokens
from firesteel.kernels.libraries.triton_kernels import import_library, noting_launches, route

LEAST_ROWS = 256  # of a matmul: with fewer, the library takes tiles that its order of the scales does not fit


def refuse(x: Tensor, ids: Tensor, weights: Tensor, experts: HopperExperts) -> str | None:
    """Returns why the library cannot take these operands, or None."""
    if why := refuse_tokens(x, ids, weights):
        return why
    if min(experts.hidden, 2 * experts.inter) < LEAST_ROWS:
        return f"wants at least {LEAST_ROWS} rows in each matmul, not {2 * experts.inter} and {experts.hidden}"
    if ids.shape[1] & (ids.shape[1] - 1):
        return f"takes a power of two of experts for each token, not {ids.shape[1]}"
    return None


def run(x: Tensor, ids: Tensor, weights: Tensor, experts: HopperExperts, alpha: float, limit: float) -> Tensor:
    if current_ahead() is not None:
        return torch.empty_like(x)  # the library compiles when it launches
    library = import_library()
    (tokens, hidden), active = x.shape, ids.shape[1]
    (up, up_precision), (down, down_precision) = experts.wrap()
    inner = torch.empty(1, tokens * active, experts.inter, dtype=x.dtype, device=x.device)
    y = torch.empty(1, tokens, hidden, dtype=x.dtype, device=x.device)
    with noting_launches():
        data, gather, scatter = route(ids, weights, experts.down_bias.shape[0])
        library.matmul.matmul_ogs(
            x,
            up,
            experts.gate_up_bias,
            data,
            gather_indx=gather,
            precision_config=up_precision,
            fused_activation=_make_swiglu(alpha, limit),
            y=inner,
        )
        library.matmul.matmul_ogs(
            inner[0],
            down,
            experts.down_bias,
            data,
            scatter_indx=scatter,
            precision_config=down_precision,
            gammas=data.gate_scal,
            y=y,
        )
    return y[0]


@functools.lru_cache(16)
def _make_swiglu(alpha: float, limit: float) -> Any:
    library = import_library()
    matmul = library.matmul
    return matmul.FusedActivation(
        matmul.FnSpecs("swiglu", library.swiglu.swiglu_fn, ("alpha", "limit")), (alpha, limit), 2
    )

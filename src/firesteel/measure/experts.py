"""Experts that decoding steps meet in each layer, from what the router chose; knows no engine."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from firesteel.measure.decode import ExpertCount, count_experts
from firesteel.model.decode import DecodeStep
from firesteel.model.network_step import NetworkStep


@torch.inference_mode()
def count_step_experts(step: DecodeStep | NetworkStep, *, num_steps: int) -> ExpertCount:
    """Over so many steps from the present inputs on, which are put back; rows of padding do not count."""
    if isinstance(step, DecodeStep):
        return count_experts(step, num_tokens=num_steps * step.num_requests)
    begin, spec, count = step.copy(), step.model.spec, int(step.advances.sum())
    chosen = torch.stack(_watch_routes(step, num_steps))[:, :count]  # [steps * L, T, A]
    step.restore(begin)
    return ExpertCount.of(chosen, num_steps, spec)


def _watch_routes(step: NetworkStep, num_steps: int) -> list[Tensor]:
    """Ids [T, A] of each call of the router."""
    kernels, found = step.model.kernels, []
    plain = kernels.route

    def route(*args: Any) -> Any:
        ids, weights = plain(*args)
        found.append(ids)
        return ids, weights

    kernels.route = route  # type: ignore[assignment]
    try:
        for _ in range(num_steps):
            step.run()
    finally:
        kernels.route = plain
    return found

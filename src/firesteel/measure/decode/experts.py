"""Experts that decoding steps meet in each layer, from what the router chose; knows no engine."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from firesteel.errors import UserError
from firesteel.measure.decode.steps import ExpertCount, watch
from firesteel.model.decode import DecodeStep
from firesteel.model.network_step import NetworkStep
from firesteel.model.spec import ModelSpec


class ExpertMeter:
    """Runs a step twice at some `points` of a run, counted in steps, and keeps what it met there."""

    def __init__(self, points: Collection[int]) -> None:
        self.points = frozenset(points)
        self._num_steps = 0
        self._chosen: list[Tensor] = []

    def look(self, step: DecodeStep | NetworkStep) -> None:
        """Right before each launch: inputs are then whole, and pages hold all that windows reach."""
        if self._num_steps in self.points:
            self._chosen.append(choose_experts(step))
        self._num_steps += 1

    def count(self, spec: ModelSpec) -> ExpertCount:
        if not self._chosen:
            raise UserError(
                f"experts are counted from step {min(self.points, default=0)} on, and {self._num_steps} steps "
                "decoded all requests together: raise --steps"
            )
        return ExpertCount.of(torch.cat(self._chosen), len(self._chosen), spec)


def spread_points(num_steps: int, num_points: int) -> list[int]:
    """As many, or all steps where there are fewer; each in the middle of its part."""
    count = min(num_steps, num_points)
    return [(2 * number + 1) * num_steps // (2 * count) for number in range(count)]


@torch.inference_mode()
def choose_experts(step: DecodeStep | NetworkStep) -> Tensor:
    """Ids [L, T, A] in a step from the present inputs on, which are put back; rows of padding are left out."""
    begin = step.copy()
    if isinstance(step, DecodeStep):
        logits = torch.stack([call.result for call in watch(step)["router"]])
        chosen = logits.topk(step.model.spec.num_active, dim=-1).indices
    else:
        chosen = torch.stack(_watch_routes(step))[:, : int(step.advances.sum())]
    step.restore(begin)
    return chosen


def _watch_routes(step: NetworkStep) -> list[Tensor]:
    """Ids [T, A] of each call of the router."""
    kernels, found = step.model.kernels, []
    plain = kernels.route

    def route(*args: Any) -> Any:
        ids, weights = plain(*args)
        found.append(ids)
        return ids, weights

    kernels.route = route  # type: ignore[assignment]
    try:
        step.run()
    finally:
        kernels.route = plain
    return found

"""Distinct experts that decoding steps read in each layer, from the choices of the router."""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from firesteel.errors import UserError
from firesteel.kernels.ops.route import RouteOperands
from firesteel.measure.decode.steps import watch
from firesteel.model.decode import DecodeStep
from firesteel.model.network_step import NetworkStep
from firesteel.model.spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertCount:
    num_tokens: int
    per_step: float  # distinct experts in a layer, mean over layers and steps
    per_layer: tuple[int, ...]  # distinct experts over all tokens

    @classmethod
    def of(cls, chosen: Tensor, num_steps: int, spec: ModelSpec) -> ExpertCount:
        """Counts the ids [steps * L, T, A] that the routers chose."""
        met = torch.zeros(chosen.shape[0], spec.num_experts, dtype=torch.bool, device=chosen.device)
        met = met.scatter(1, chosen.flatten(1), True).unflatten(0, (num_steps, spec.num_layers))
        return cls(
            num_tokens=num_steps * chosen.shape[1],
            per_step=float(met.sum(-1).float().mean()),
            per_layer=tuple(met.any(0).sum(-1).tolist()),
        )

    @property
    def total(self) -> int:
        return sum(self.per_layer)

    def as_dict(self) -> dict[str, Any]:
        return {
            "tokens": self.num_tokens,
            "distinct_a_layer_and_step": self.per_step,
            "distinct_by_layer": list(self.per_layer),
            "distinct_in_all_layers": self.total,
        }


def count_experts(step: DecodeStep, *, num_tokens: int) -> ExpertCount:
    """Counts the experts of at least `num_tokens` tokens and restores the inputs of `step` afterwards."""
    spec, num_requests, begin = step.model.spec, step.inputs.token_ids.shape[0], step.inputs.copy()
    num_steps = -(-num_tokens // num_requests)
    logits = [call.result for _ in range(num_steps) for call in watch(step)["router"]]
    step.inputs.restore(begin)
    chosen = torch.stack(logits).topk(spec.num_active, dim=-1).indices  # [steps * L, T, A]
    return ExpertCount.of(chosen, num_steps, spec)


class ExpertMeter:
    """Counts the experts of a run at some steps (`points`), by running those steps twice."""

    def __init__(self, points: Collection[int]) -> None:
        self.points = frozenset(points)
        self._num_steps = 0
        self._chosen: list[Tensor] = []

    def look(self, step: DecodeStep | NetworkStep) -> None:
        """Must be called right before each launch: only then are the inputs and the pages of windows complete."""
        if self._num_steps in self.points:
            self._chosen.append(choose_experts(step))
        self._num_steps += 1

    def count(self, spec: ModelSpec) -> ExpertCount:
        if not self._chosen:
            raise UserError(
                f"experts are counted from step {min(self.points, default=0)} on, but only {self._num_steps} steps "
                "decoded all requests together: raise --steps"
            )
        return ExpertCount.of(torch.cat(self._chosen), len(self._chosen), spec)


def spread_points(num_steps: int, num_points: int) -> list[int]:
    """Returns `num_points` steps, each in the middle of an equal part of the run; all steps if there are fewer."""
    count = min(num_steps, num_points)
    return [(2 * number + 1) * num_steps // (2 * count) for number in range(count)]


@torch.inference_mode()
def choose_experts(step: DecodeStep | NetworkStep) -> Tensor:
    """Returns the ids [L, T, A] that the next step chooses, without rows of padding, and restores the inputs."""
    begin = step.copy()
    if isinstance(step, DecodeStep):
        logits = torch.stack([call.result for call in watch(step)["router"]])
        chosen = logits.topk(step.model.spec.num_active, dim=-1).indices
    else:
        chosen = torch.stack(_watch_routes(step))[:, : int(step.advances.sum())]
    step.restore(begin)
    return chosen


def _watch_routes(step: NetworkStep) -> list[Tensor]:
    """Runs a step and returns the ids [T, A] of each call of the router."""
    route, all_ids = step.model.kernels.route, []

    def watched(operands: RouteOperands) -> tuple[Tensor, Tensor]:
        ids, weights = route(operands)
        all_ids.append(ids)
        return ids, weights

    # Copies that share weights, pages and inputs with `step` and differ in the router only.
    observed, model, kernels = copy.copy(step), copy.copy(step.model), copy.copy(step.model.kernels)
    observed.model, model.kernels = model, kernels
    kernels.route = watched  # type: ignore[assignment]
    observed.run()
    return all_ids

"""The result of a step: the last tokens and the logit of each, side by side, so one copy takes both to the host."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class StepResult:
    """The token and its logit for each of T requests."""

    both: Tensor  # [2, T] int64

    @classmethod
    def new(cls, num_requests: int, device: torch.device) -> StepResult:
        return cls(torch.zeros(2, num_requests, dtype=torch.int64, device=device))

    @property
    def token_ids(self) -> Tensor:
        """The token ids [T], int64."""
        return self.both[0]

    @property
    def best(self) -> Tensor:
        """The logit of each token [T], fp32; not finite if the logits are NaN or infinite."""
        return self.both[1].view(torch.float32)[: self.both.shape[1]]

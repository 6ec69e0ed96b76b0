"""The last tokens of a step and the logit of each, side by side: one copy takes both to the host; knows no step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Report:
    """Of T requests."""

    both: Tensor  # [2, T] int64

    @classmethod
    def new(cls, num_requests: int, device: torch.device) -> Report:
        return cls(torch.zeros(2, num_requests, dtype=torch.int64, device=device))

    @property
    def token_ids(self) -> Tensor:
        """[T] int64"""
        return self.both[0]

    @property
    def best(self) -> Tensor:
        """[T] fp32: the logit of each token; not finite where logits are broken."""
        return self.both[1].view(torch.float32)[: self.both.shape[1]]

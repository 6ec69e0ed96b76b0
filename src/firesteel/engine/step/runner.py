"""Runs the model on a batch, op by op, over the pages that it owns."""

from __future__ import annotations

import torch
from torch import Tensor

from firesteel.model.gpt_oss import GptOss
from firesteel.types import Batch, KvCache, Taps


class Runner:
    """The model and its pages of keys and values."""

    def __init__(self, model: GptOss, cache: KvCache) -> None:
        self.model = model
        self.cache = cache

    @torch.inference_mode()
    def run(self, batch: Batch, taps: Taps | None = None) -> Tensor:
        """Returns fp32 logits [L, V] of the rows whose logits are wanted; does not wait for the device."""
        hidden = self.model.forward(batch, self.cache, taps=taps)
        if not hidden.shape[0]:
            return torch.empty(0, self.model.spec.vocab_size, dtype=torch.float32, device=hidden.device)
        return self.model.logits(hidden)

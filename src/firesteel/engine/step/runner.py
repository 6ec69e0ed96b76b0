"""Runs the model on a batch over the pages it owns; knows no request."""

from __future__ import annotations

import torch
from torch import Tensor

from firesteel.model.gpt_oss import GptOss
from firesteel.types import Batch, KvCache


class Runner:
    def __init__(self, model: GptOss, cache: KvCache) -> None:
        self.model = model
        self.cache = cache

    @torch.inference_mode()
    def run(self, batch: Batch) -> Tensor:
        """[L, V] fp32 of the rows whose logits are wanted; waits for nothing."""
        hidden = self.model.forward(batch, self.cache)
        if not hidden.shape[0]:
            return torch.empty(0, self.model.spec.vocab_size, dtype=torch.float32, device=hidden.device)
        return self.model.logits(hidden)

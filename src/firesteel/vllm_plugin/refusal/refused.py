"""A model class that fails with the reason, registered if ours cannot run: vLLM's must not be used unnoticed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from firesteel.errors import UserError
from firesteel.vllm_plugin.refusal.reason import find_refusal


class RefusedGptOss(nn.Module):
    """Raises when it is built. vLLM recognises a model that generates text by the methods, which never run."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        raise UserError(f"firesteel: {find_refusal()}")

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, input_ids: Tensor, positions: Tensor, **others: Any) -> Tensor:
        raise NotImplementedError

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        raise NotImplementedError

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        raise NotImplementedError


class RefusedGptOssConfig:
    """Raises while vLLM checks its configuration, in the process that the user sees, before workers start."""

    @staticmethod
    def verify_and_update_model_config(model_config: Any) -> None:
        raise UserError(f"firesteel: {find_refusal()}")

    @staticmethod
    def verify_and_update_config(vllm_config: Any) -> None:
        raise UserError(f"firesteel: {find_refusal()}")

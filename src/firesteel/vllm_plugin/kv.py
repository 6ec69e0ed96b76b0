"""A layer as vLLM's KV cache manager sees it: a name, a kind of cache, and the tensor that it is given.

Shape letters: P blocks of vLLM, K kv heads, S page size, D head dim.
"""
# mypy: disable-error-code="import-not-found,misc"

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

from firesteel.types import KvCache
from firesteel.vllm_plugin.backend import FiresteelBackend
from firesteel.vllm_plugin.step_log import StepLog


class KvLayer(nn.Module, AttentionLayerBase):
    """A layer without weights that registers itself with vLLM's KV cache manager."""

    def __init__(
        self,
        vllm_config: Any,
        name: str,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        window: int | None,
        dtype: torch.dtype,
        steps: StepLog,
    ) -> None:
        super().__init__()
        context = vllm_config.compilation_config.static_forward_context
        if name in context:
            raise ValueError(f"two attention layers are called {name}")
        context[name] = self
        self.layer_name = name
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.window, self.dtype, self.steps = window, dtype, steps
        self.kv_cache = torch.tensor([])

    def get_attn_backend(self) -> type[FiresteelBackend]:
        return FiresteelBackend

    def get_kv_cache_spec(self, vllm_config: Any) -> Any:
        common = {
            "block_size": vllm_config.cache_config.block_size,
            "num_kv_heads": self.num_kv_heads,
            "head_size": self.head_dim,
            "dtype": self.dtype,
        }
        if self.window is None:
            return FullAttentionSpec(**common)
        return SlidingWindowSpec(sliding_window=self.window, **common)

    def bind_kv_cache(self, kv_cache: Tensor) -> None:
        """Takes the layer's tensor; vLLM calls it from 0.28 on, older versions set the attribute."""
        self.kv_cache = kv_cache

    @property
    def is_bound(self) -> bool:
        return self.kv_cache.numel() > 0

    def pages(self) -> tuple[Tensor, Tensor]:
        """Returns keys and values, each [.., K, S, D], as our kernels read them: block b of vLLM is page 2b.

        A block holds keys and then values, so the values of page 2b begin one page after its keys.
        """
        kv = self.kv_cache
        if not kv.is_contiguous():
            raise ValueError(f"{self.layer_name}: pages of shape {tuple(kv.shape)} have strides {kv.stride()}")
        if kv.dim() == 4:  # from vLLM 0.30 on: [P, K, S, 2 D], whose bytes are ours to arrange
            blocks, heads, tokens, content = kv.shape
            kv = kv.view(blocks, 2, heads, tokens, content // 2)
        flat = kv.view(-1, *kv.shape[2:])
        return flat, flat[1:]


def bound_cache(layers: list[KvLayer]) -> KvCache:
    """Returns the pages that vLLM has given to the layers."""
    pairs = [layer.pages() for layer in layers]
    return KvCache(
        keys=[keys for keys, _ in pairs],
        values=[values for _, values in pairs],
        saturated=_new_counter(layers[0].dtype, pairs[0][0].device),
    )


def scratch_cache(layers: list[KvLayer], num_tokens: int, page_size: int, device: torch.device) -> KvCache:
    """Returns one pair of pages that all layers share, for runs whose results nobody reads."""
    first = layers[0]
    blocks = 1 + -(-num_tokens // page_size)
    kv = torch.zeros(2 * blocks, first.num_kv_heads, page_size, first.head_dim, dtype=first.dtype, device=device)
    saturated = _new_counter(first.dtype, device)
    return KvCache(keys=[kv] * len(layers), values=[kv[1:]] * len(layers), saturated=saturated)


def _new_counter(dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """Returns the counter of clipped values that pages in E4M3 need."""
    return torch.zeros(1, dtype=torch.int64, device=device) if dtype == torch.float8_e4m3fn else None

"""The attention backend that vLLM's KV cache manager and model runners see.

It computes nothing: the model calls our attention op itself. It only describes the layout of pages and passes on
vLLM's tensors of a step, which stay in place, as a full CUDA graph needs.
"""
# mypy: disable-error-code="import-not-found,misc,no-untyped-call"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadataBuilder,
    MultipleOf,
)

from firesteel.vllm_plugin.step_log import StepLog

PAGE_STEP = 16  # the decode kernels read tokens of a page in tiles of this size
PAGE_SIZE = 64  # tokens per page, unless the user says otherwise


@dataclass(frozen=True, slots=True)
class StepMetadata:
    """One step of one KV cache group, as vLLM prepared it."""

    query_starts: Tensor  # [R+1] int32
    kv_lens: Tensor  # [R] int32; 0 for padding
    block_table: Tensor  # [R, N] int32
    slots: Tensor  # [T] int64; -1 for padding
    most_queries: int  # tokens of the request with the most of them


class StepMetadataBuilder(AttentionMetadataBuilder[Any]):
    """Passes vLLM's tensors through."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.steps: StepLog = vllm_config.compilation_config.static_forward_context[layer_names[0]].steps

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False, **_: Any
    ) -> StepMetadata:
        common = common_attn_metadata
        is_decoding = common.max_query_len == 1 and common.num_actual_tokens == common.num_reqs
        self.steps.announce(common.num_reqs, is_decoding)
        return StepMetadata(
            common.query_start_loc,
            common.seq_lens,
            common.block_table_tensor,
            common.slot_mapping,
            common.max_query_len,
        )


class NoAttention(AttentionImpl[Any]):
    """Placeholder for the attention code that vLLM expects of a backend."""

    def __init__(self, *args: Any, **options: Any) -> None:
        raise NotImplementedError("firesteel's model class computes attention itself")

    def forward(self, *args: Any, **options: Any) -> Tensor:
        raise NotImplementedError("firesteel's model class computes attention itself")


class FiresteelBackend(AttentionBackend):
    """Pages of keys and values, HND: a block holds the keys of all heads, then the values."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.bfloat16, torch.float32]
    accept_output_buffer = True

    @staticmethod
    def get_name() -> str:
        return "FIRESTEEL"

    @staticmethod
    def get_impl_cls() -> type[NoAttention]:
        return NoAttention

    @staticmethod
    def get_builder_cls() -> type[StepMetadataBuilder]:
        return StepMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(*_: Any) -> list[Any]:
        return [MultipleOf(PAGE_STEP)]

    @classmethod
    def get_preferred_block_size(cls, default_block_size: int) -> int:
        return PAGE_SIZE

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, cache_dtype_str: str = "auto"
    ) -> tuple[int, ...]:
        return num_blocks, 2, num_kv_heads, block_size, head_size

    @staticmethod
    def get_kv_cache_stride_order(include_num_layers_dimension: bool = False) -> tuple[int, ...]:
        return tuple(range(6 if include_num_layers_dimension else 5))

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[Any, ...]:
        """Lists the layouts by their names from vLLM 0.30 on; older versions ask for a shape instead."""
        from vllm.v1.kv_cache_interface import KVCacheLayout

        return (KVCacheLayout.LBHNC,)

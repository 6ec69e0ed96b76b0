"""Keys and values in memory: how many pages there is room for, and their tensors; knows no request.

Window and full layers come in pairs that share a tensor: page 7 holds tokens of either the one or the other. So the
pool need not be divided between them, and long and short texts use it alike.
"""

from __future__ import annotations

import torch
from torch import Tensor

from firesteel.config import BatchConfig, CacheConfig
from firesteel.device import GIB, DeviceSpec, available_bytes
from firesteel.engine.cache.page_tables import FULL, WINDOW, PageLayout
from firesteel.engine.step.step_sizes import GRAPH_BYTES, reaches, step_sizes
from firesteel.errors import UserError
from firesteel.model.prompt_sizes import prompt_sizes
from firesteel.model.spec import ModelSpec
from firesteel.types import KvCache

CPU_SHARE = 8  # without a size given, a CPU's cache takes at most 1/8 of the memory that is free
PROMPT_LOGITS_BYTES = 1 << 28
PLENTY = 2  # times what all sequences need at their longest; no cache is made larger by itself


class CacheError(UserError):
    """A cache that does not fit into memory, or that holds too little."""


def find_dtype(name: str, device: DeviceSpec) -> torch.dtype:
    return {"auto": device.dtype, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}[name]


def find_layout(spec: ModelSpec, page_size: int) -> PageLayout:
    kinds = {FULL if window is None else WINDOW for window in spec.windows}
    return PageLayout(
        page_size=page_size,
        kinds=tuple(kind for kind in (FULL, WINDOW) if kind in kinds),
        window=max((window for window in spec.windows if window is not None), default=0),
    )


def pair_layers(spec: ModelSpec) -> list[int]:
    """For each layer the number of its tensors: the n-th window and the n-th full layer have the same."""
    counts = {FULL: 0, WINDOW: 0}
    numbers = []
    for window in spec.windows:
        kind = FULL if window is None else WINDOW
        numbers.append(counts[kind])
        counts[kind] += 1
    return numbers


def page_bytes(spec: ModelSpec, page_size: int, dtype: torch.dtype) -> int:
    """Of one page number, keys and values of all layers."""
    return 2 * len(set(pair_layers(spec))) * spec.kv_size * page_size * dtype.itemsize


def count_prompt_logits(spec: ModelSpec) -> int:
    """Prompt tokens whose logits one step may hand out."""
    return max(1, PROMPT_LOGITS_BYTES // (4 * spec.vocab_size))


def row_bytes(spec: ModelSpec) -> int:
    """Of what a step computes for one token."""
    return (
        4 * spec.hidden_size + 2 * (spec.q_size + 2 * spec.kv_size) + 4 * spec.num_active * spec.intermediate_size
    )


def working_bytes(spec: ModelSpec, config: BatchConfig) -> int:
    """What a step may need beside weights and cache: a few copies of each row, and of the logits."""
    tokens, logits = config.max_num_batched_tokens, config.max_num_seqs * spec.vocab_size * 4 + PROMPT_LOGITS_BYTES
    return 4 * tokens * row_bytes(spec) + 4 * logits


def graph_bytes(spec: ModelSpec, config: BatchConfig, max_context: int) -> int:
    """What captured steps may need: each its own, and tensors of the largest that all share."""
    prompts = prompt_sizes(config.max_num_batched_tokens, config.max_num_seqs)
    count = len(step_sizes(config.max_num_seqs)) * len(reaches(max_context)) + len(prompts)
    return (
        count * GRAPH_BYTES
        + 4 * prompts[-1].tokens * row_bytes(spec)
        + 4 * config.max_num_seqs * spec.vocab_size * 4
    )


def count_pages(
    spec: ModelSpec,
    device: DeviceSpec,
    batch: BatchConfig,
    cache: CacheConfig,
    *,
    max_context: int,
    reserve_gib: float,
) -> int:
    """Pages of the pool: what the user asked for, or what free memory has room for."""
    one = page_bytes(spec, batch.page_size, find_dtype(cache.kv_dtype, device))
    layout, free = find_layout(spec, batch.page_size), available_bytes(device)
    if cache.kv_cache_gib * GIB > free:
        raise CacheError(
            f"kv_cache_gib = {cache.kv_cache_gib:g}: only {free / GIB:.1f} GiB of memory are free; lower it"
        )
    if cache.kv_cache_gib:
        count = int(cache.kv_cache_gib * GIB) // one
    else:
        room = free - int(reserve_gib * GIB) - working_bytes(spec, batch)
        room -= graph_bytes(spec, batch, max_context) if device.is_cuda else 0
        room = room if device.is_cuda else min(room, free // CPU_SHARE)
        count = min(room // one, PLENTY * batch.max_num_seqs * layout.count_pages(max_context))
    least = layout.count_pages(min(max_context, batch.page_size))
    if count < least:
        raise CacheError(
            f"the cache has room for {max(count, 0)} pages of {one} bytes, at least {least} are needed "
            f"({free / GIB:.1f} GiB of memory are free): raise --kv-cache-gib, or lower --memory-reserve-gib, "
            "--max-num-batched-tokens or --page-size"
        )
    return count


def new_cache(spec: ModelSpec, num_pages: int, page_size: int, device: DeviceSpec, dtype: torch.dtype) -> KvCache:
    shape = (num_pages, spec.num_kv_heads, page_size, spec.head_dim)
    numbers = pair_layers(spec)

    def pages() -> list[Tensor]:
        tensors = [torch.empty(shape, dtype=dtype, device=device.torch_device) for _ in set(numbers)]
        return [tensors[number] for number in numbers]

    fp8 = dtype == torch.float8_e4m3fn
    saturated = torch.zeros(1, dtype=torch.int64, device=device.torch_device) if fp8 else None
    return KvCache(keys=pages(), values=pages(), saturated=saturated)

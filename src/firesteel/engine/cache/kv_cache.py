"""Memory of keys and values: the number of pages that fit, and their tensors.

Window and full layers come in pairs that share a tensor: a page holds tokens of one kind of layer or the other. So
the pool need not be divided between them in advance, and suits long and short texts equally.
"""

from __future__ import annotations

import torch
from torch import Tensor

from firesteel.config import BatchConfig, CacheConfig
from firesteel.device import GIB, DeviceSpec, available_bytes
from firesteel.engine.cache.page_tables import FULL, WINDOW, PageLayout
from firesteel.engine.step.step_sizes import GRAPH_BYTES, reaches, step_sizes
from firesteel.errors import UserError
from firesteel.model.drafters.draft_sizes import DraftSizes
from firesteel.model.prompt_sizes import prompt_sizes
from firesteel.model.spec import ModelSpec
from firesteel.types import KvCache

CPU_SHARE = 8  # by default the cache of a CPU takes at most 1/8 of free memory
PROMPT_LOGITS_BYTES = 1 << 28
MAX_CACHE_FACTOR = 2  # default limit of the cache, as a multiple of what all sequences need at full length
UNIFIED_REQUESTS = 4  # of full length that the cache holds by default at most, where the host shares the memory


class CacheError(UserError):
    """Raised if the cache does not fit into memory or has too few pages."""


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
    """Returns the tensor number of each layer; the n-th window layer and the n-th full layer share one."""
    counts = {FULL: 0, WINDOW: 0}
    numbers = []
    for window in spec.windows:
        kind = FULL if window is None else WINDOW
        numbers.append(counts[kind])
        counts[kind] += 1
    return numbers


def page_bytes(spec: ModelSpec, page_size: int, dtype: torch.dtype) -> int:
    """Returns the bytes of one page: keys and values of all layers."""
    return 2 * len(set(pair_layers(spec))) * spec.kv_size * page_size * dtype.itemsize


def count_prompt_logits(spec: ModelSpec) -> int:
    """Returns the most prompt tokens whose logits one step may return."""
    return max(1, PROMPT_LOGITS_BYTES // (4 * spec.vocab_size))


def row_bytes(spec: ModelSpec) -> int:
    """Returns the bytes of what a step computes per token."""
    return (
        4 * spec.hidden_size + 2 * (spec.q_size + 2 * spec.kv_size) + 4 * spec.num_active * spec.intermediate_size
    )


def count_step_bytes(spec: ModelSpec, tokens: int) -> int:
    """Returns the memory that a step of `tokens` may need for its rows: a few copies of each."""
    return 4 * tokens * row_bytes(spec)


def working_bytes(spec: ModelSpec, config: BatchConfig) -> int:
    """Returns the memory that a step may need beside weights and cache: a few copies of each row and logits."""
    tokens, logit_bytes = config.max_num_batched_tokens, spec.vocab_size * 4
    logits = config.max_num_seqs * logit_bytes + min(PROMPT_LOGITS_BYTES, tokens * logit_bytes)
    return count_step_bytes(spec, tokens) + 4 * logits


def graph_bytes(spec: ModelSpec, config: BatchConfig, max_context: int, most_rows: int = 0) -> int:
    """Returns the memory that captured steps may need: per graph, plus the tensors that all share.

    A decoding step has up to `most_rows`, by default one per request.
    """
    most_rows = most_rows or config.max_num_seqs
    prompts = prompt_sizes(config.max_num_batched_tokens, config.max_num_seqs)
    count = len(step_sizes(most_rows)) * len(reaches(max_context)) + len(prompts)
    shared = count_step_bytes(spec, prompts[-1].tokens) + 4 * most_rows * spec.vocab_size * 4
    return count * GRAPH_BYTES + shared


def draft_graph_bytes(spec: ModelSpec, sizes: DraftSizes | None) -> int:
    """Returns the memory that captured drafting steps may need: per graph, and the logits of the largest."""
    if sizes is None:
        return 0
    return len(sizes.list_all()) * GRAPH_BYTES + 4 * sizes.most_logits * spec.vocab_size


def count_pages(
    spec: ModelSpec,
    device: DeviceSpec,
    batch: BatchConfig,
    cache: CacheConfig,
    *,
    max_context: int,
    reserve_gib: float,
    most_rows: int = 0,
    drafter_bytes: int = 0,
    draft_sizes: DraftSizes | None = None,
) -> int:
    """Returns the pages of the pool: as many as the user asked for, or as fit into free memory.

    Decoding steps have up to `most_rows`, by default one per request. A draft network stores `drafter_bytes` more
    per page, and has captured steps of `draft_sizes`.
    """
    bytes_per_page = page_bytes(spec, batch.page_size, find_dtype(cache.kv_dtype, device)) + drafter_bytes
    layout, free = find_layout(spec, batch.page_size), available_bytes(device)
    if cache.kv_cache_gib * GIB > free:
        raise CacheError(
            f"kv_cache_gib = {cache.kv_cache_gib:g}: only {free / GIB:.1f} GiB of memory are free; lower it"
        )
    if device.is_unified and cache.kv_cache_gib > free / GIB - reserve_gib:
        raise CacheError(
            f"kv_cache_gib = {cache.kv_cache_gib:g}: {free / GIB:.1f} GiB of memory are free, of which the host "
            f"keeps {reserve_gib:.1f}: lower it or --memory-reserve-gib"
        )
    if cache.kv_cache_gib:
        count = int(cache.kv_cache_gib * GIB) // bytes_per_page
    else:
        room = free - int(reserve_gib * GIB) - working_bytes(spec, batch)
        if device.is_cuda:
            room -= graph_bytes(spec, batch, max_context, most_rows) + draft_graph_bytes(spec, draft_sizes)
        room = room if device.is_cuda else min(room, free // CPU_SHARE)
        requests = MAX_CACHE_FACTOR * batch.max_num_seqs
        requests = min(requests, UNIFIED_REQUESTS) if device.is_unified else requests
        count = min(room // bytes_per_page, requests * layout.count_pages(max_context))
    least = layout.count_pages(min(max_context, batch.page_size))
    if count < least:
        raise CacheError(
            f"the cache has room for {max(count, 0)} pages of {bytes_per_page} bytes, at least {least} are needed "
            f"({free / GIB:.1f} GiB of memory are free): raise --kv-cache-gib, or lower --memory-reserve-gib, "
            "--max-num-batched-tokens or --page-size"
        )
    return count


def new_cache(spec: ModelSpec, num_pages: int, page_size: int, device: DeviceSpec, dtype: torch.dtype) -> KvCache:
    """Allocates the pages of all layers."""
    shape = (num_pages, spec.num_kv_heads, page_size, spec.head_dim)
    numbers = pair_layers(spec)

    def pages() -> list[Tensor]:
        tensors = [torch.empty(shape, dtype=dtype, device=device.torch_device) for _ in set(numbers)]
        return [tensors[number] for number in numbers]

    fp8 = dtype == torch.float8_e4m3fn
    saturated = torch.zeros(1, dtype=torch.int64, device=device.torch_device) if fp8 else None
    return KvCache(keys=pages(), values=pages(), saturated=saturated)

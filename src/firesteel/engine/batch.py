"""Builds the tensors of one step from spans of requests; knows no scheduler and no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from firesteel.device import DeviceSpec
from firesteel.model.spec import ModelSpec
from firesteel.types import Batch, KvCache, KvView


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens of one request to compute now: positions start, start + 1, ..."""

    token_ids: Sequence[int]
    start: int
    pages: Sequence[int]  # of the request, from its first token

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids)


def build_batch(spans: Sequence[Span], page_size: int, device: torch.device) -> Batch:
    positions = [position for span in spans for position in range(span.start, span.end)]
    slots = [
        span.pages[position // page_size] * page_size + position % page_size
        for span in spans
        for position in range(span.start, span.end)
    ]
    width = max(-(-span.end // page_size) for span in spans)
    table = [[*span.pages[:width], *[0] * (width - len(span.pages))] for span in spans]
    starts = [0]
    for span in spans:
        starts.append(starts[-1] + len(span.token_ids))

    def tensor(values: list[int] | list[list[int]]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    view = KvView(page_table=tensor(table), slots=tensor(slots))
    return Batch(
        token_ids=tensor([token for span in spans for token in span.token_ids]), positions=tensor(positions),
        query_starts=tensor(starts), kv_lens=tensor([span.end for span in spans]), full=view, window=view,
    )  # fmt: skip


def empty_cache(spec: ModelSpec, num_pages: int, page_size: int, device: DeviceSpec) -> KvCache:
    shape = (num_pages, spec.num_kv_heads, page_size, spec.head_dim)

    def pages() -> list[torch.Tensor]:
        return [torch.empty(shape, dtype=device.dtype, device=device.torch_device) for _ in range(spec.num_layers)]

    return KvCache(keys=pages(), values=pages())

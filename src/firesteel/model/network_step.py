"""One decoding step of any number of requests through the network, over tensors that stay in place.

It does the work of `DecodeStep` where the fused ops do not apply: more rows, activations rounded to MXFP4, other
shapes. As there, rows may belong to one request. Rows without a request compute a token in the idle page, which no
request owns, use no expert and do not advance.

Shape letters: T rows with one token each, V vocabulary, N pages that a request can hold, S page size.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from firesteel.errors import UserError
from firesteel.model.gpt_oss import GptOss
from firesteel.model.host_batch import HostBatch
from firesteel.model.step_ints import StepInts
from firesteel.types import Batch, KvCache, KvView, Taps


class NetworkStep:
    """A decoding step: `load` a batch, then `run` while its pages have room; `result` has the last tokens."""

    def __init__(
        self,
        model: GptOss,
        cache: KvCache,
        *,
        num_requests: int,
        num_pages: int,
        idle_page: int,
        logits: Tensor,
        taps: Taps | None = None,
    ) -> None:
        """Allocates inputs with page tables of `num_pages`.

        Each run writes `logits` [T or more, V] fp32, and `taps`, which have at least as many rows.
        """
        self.model = model
        self.cache = cache
        self.idle_page = idle_page
        self.taps = taps
        self.num_requests, self.num_pages = num_requests, num_pages
        device, page_size = model.weights.embedding.device, cache.keys[0].shape[2]
        more = {"advances": num_requests, "num_tokens": 1}
        self.ints = StepInts(num_requests, num_pages, device, more=more, idle_page=idle_page, page_size=page_size)
        self.result = self.ints.result
        self.advances = self.ints["advances"]  # 1 for rows with a request, else 0
        self.batch = _view(self.ints)
        self.logits = logits[:num_requests]
        self.rest()

    @property
    def page_size(self) -> int:
        return self.cache.keys[0].shape[2]

    @torch.inference_mode()
    def rest(self) -> None:
        """Clears all rows: they have no request afterwards."""
        self._load(HostBatch.empty())

    @torch.inference_mode()
    def load(self, batch: Batch | HostBatch, token_ids: Tensor | None = None) -> None:
        """Sets the first inputs; the batch has at most as many requests as the step has rows.

        Does not wait for the device, unless the batch is there. `token_ids` on the device replace those of the
        batch; they may not be this step's own, which are overwritten first.
        """
        batch = batch if isinstance(batch, HostBatch) else HostBatch.of(batch)
        count = batch.num_tokens
        if count > self.num_requests or batch.num_requests != count:
            raise UserError(
                f"a step of {self.num_requests} requests with one token each was given {count} tokens of "
                f"{batch.num_requests} requests"
            )
        self._load(batch)
        if token_ids is not None:
            self.feed(token_ids)

    @torch.inference_mode()
    def run(self) -> Tensor:
        """Returns fp32 logits [T, V], from which the next tokens were taken, and advances the inputs to them."""
        return self._run()

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Launches every kernel that `run` launches, but computes only the first layers of each kind."""
        self._run(self.model.num_layers_of_each_kind)

    @torch.inference_mode()
    def feed(self, token_ids: Tensor) -> None:
        """Replaces the most likely tokens by `token_ids` as inputs of the next step, for the first rows."""
        self.batch.token_ids[: len(token_ids)] = token_ids

    @torch.inference_mode()
    def add_pages(self, rows: Tensor, columns: Tensor, full: Tensor, window: Tensor) -> None:
        """Adds a page to each of `rows` at `columns` of the tables; the row's next token is the first of it."""
        add_pages(self.batch.full, rows, columns, full, self.page_size)
        add_pages(self.batch.window, rows, columns, window, self.page_size)

    def copy(self) -> list[Tensor]:
        """Returns clones of the input tensors."""
        return [tensor.clone() for tensor in self._inputs()]

    def restore(self, copied: list[Tensor]) -> None:
        """Restores the inputs that `copy` returned."""
        for tensor, old in zip(self._inputs(), copied, strict=True):
            tensor.copy_(old)

    def _load(self, batch: HostBatch) -> None:
        count = batch.num_tokens
        self.ints.load(batch, {"advances": np.ones(count, dtype=np.int64), "num_tokens": np.array([count])})

    def _run(self, num_layers: int | None = None) -> Tensor:
        hidden = self.model.forward(self.batch, self.cache, num_layers, self.taps)
        logits = self.model.logits(hidden, self.logits)
        torch.max(logits, dim=-1, out=(self.result.best, self.result.token_ids))
        self._advance()
        return logits

    def _inputs(self) -> Iterator[Tensor]:
        batch = self.batch
        yield from (batch.token_ids, batch.positions, batch.kv_lens, self.advances, self.ints["num_tokens"])
        for view in (batch.full, batch.window):
            yield from (view.page_table, view.slots)

    def _advance(self) -> None:
        """Computes the next step's positions and slots, with few kernels: their launches are what they cost."""
        state, page_size = self.ints, self.page_size
        state.counts.add_(self.advances)
        columns = (self.batch.positions // page_size).clamp_(max=self.num_pages - 1)
        pages = state.page_tables.gather(2, columns.expand(2, -1)[:, :, None])[:, :, 0]
        torch.add(self.batch.positions % page_size, pages, alpha=page_size, out=state.slots)


def add_pages(view: KvView, rows: Tensor, columns: Tensor, pages: Tensor, page_size: int) -> None:
    """Adds pages to the page table and slots of `view` in place."""
    view.page_table.index_put_((rows, columns), pages)
    view.slots.index_copy_(0, rows, pages * page_size)


def _view(ints: StepInts) -> Batch:
    """Returns a batch of views of the numbers, with one token per request."""
    count, device = ints.num_requests, ints.slots.device
    full, window = (KvView(page_table=ints.page_tables[kind], slots=ints.slots[kind]) for kind in range(2))
    return Batch(
        token_ids=ints.result.token_ids,
        positions=ints["positions"],
        kv_lens=ints["kv_lens"],
        full=full,
        window=window,
        query_starts=torch.arange(count + 1, device=device),
        logit_rows=torch.arange(count, device=device),
        num_tokens=ints["num_tokens"],
    )

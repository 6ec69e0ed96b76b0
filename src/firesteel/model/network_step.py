"""One decoding step of any number of requests through the network, over tensors that stay in place.

It does the work of `DecodeStep` where the fused ops do not apply: more rows, activations rounded to MXFP4, other
shapes. As there, rows may belong to one request. Rows without a request compute a token in the idle page, which no
request owns, use no expert and do not advance.

Shape letters: T rows with one token each, V vocabulary, N pages that a request can hold, S page size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from firesteel.errors import UserError
from firesteel.model.gpt_oss import GptOss
from firesteel.model.host_batch import ALIGNED
from firesteel.model.step_result import StepResult
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
        self.result = StepResult.new(num_requests, model.weights.embedding.device)
        self.state = _State.new(num_requests, num_pages, self.result.both.device)
        self.batch = self.state.batch(self.result.token_ids)
        self.advances = torch.zeros_like(self.batch.positions)  # 1 for rows with a request, else 0
        self.logits = logits[:num_requests]
        self.rest()

    @property
    def page_size(self) -> int:
        return self.cache.keys[0].shape[2]

    @torch.inference_mode()
    def rest(self, first: int = 0) -> None:
        """Clears the rows from `first` on: they have no request afterwards."""
        batch = self.batch
        for numbers, value in ((batch.token_ids, 0), (batch.positions, 0), (batch.kv_lens, 1), (self.advances, 0)):
            numbers[first:] = value
        self.state.num_tokens.fill_(first)
        for view in (batch.full, batch.window):
            view.page_table[first:] = self.idle_page
            view.slots[first:] = self.idle_page * self.page_size

    @torch.inference_mode()
    def load(self, batch: Batch) -> None:
        """Sets the first inputs; the batch has at most as many requests as the step has rows."""
        count, ours = batch.token_ids.shape[0], self.batch
        if count > self.num_requests or batch.kv_lens.shape[0] != count:
            raise UserError(
                f"a step of {self.num_requests} requests with one token each was given {count} tokens of "
                f"{batch.kv_lens.shape[0]} requests"
            )
        ours.token_ids[:count] = batch.token_ids
        ours.positions[:count] = batch.positions
        ours.kv_lens[:count] = batch.kv_lens
        self.advances[:count] = 1
        self.state.num_tokens.fill_(count)
        for mine, given in ((ours.full, batch.full), (ours.window, batch.window)):
            mine.page_table[:count, : given.page_table.shape[1]] = given.page_table
            mine.slots[:count] = given.slots
        if count < self.num_requests:
            self.rest(count)

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

    def _run(self, num_layers: int | None = None) -> Tensor:
        hidden = self.model.forward(self.batch, self.cache, num_layers, self.taps)
        logits = self.model.logits(hidden, self.logits)
        torch.max(logits, dim=-1, out=(self.result.best, self.result.token_ids))
        self._advance()
        return logits

    def _inputs(self) -> Iterator[Tensor]:
        batch = self.batch
        yield from (batch.token_ids, batch.positions, batch.kv_lens, self.advances, self.state.num_tokens)
        for view in (batch.full, batch.window):
            yield from (view.page_table, view.slots)

    def _advance(self) -> None:
        """Computes the next step's positions and slots, with few kernels: their launches are what they cost."""
        state, page_size = self.state, self.page_size
        state.counts.add_(self.advances)
        columns = (self.batch.positions // page_size).clamp_(max=self.num_pages - 1)
        pages = state.page_tables.gather(2, columns.expand(2, -1)[:, :, None])[:, :, 0]
        torch.add(self.batch.positions % page_size, pages, alpha=page_size, out=state.slots)


def add_pages(view: KvView, rows: Tensor, columns: Tensor, pages: Tensor, page_size: int) -> None:
    """Adds pages to the page table and slots of `view` in place."""
    view.page_table.index_put_((rows, columns), pages)
    view.slots.index_copy_(0, rows, pages * page_size)


@dataclass(frozen=True, slots=True)
class _State:
    """The numbers of a batch; those that change in the same way are rows of one tensor."""

    counts: Tensor  # [2, T] int64: positions, kv_lens
    page_tables: Tensor  # [2, T, N] int64: of full layers, of window layers
    slots: Tensor  # [2, T] int64
    num_tokens: Tensor  # [1] int64: rows with a request

    @classmethod
    def new(cls, num_requests: int, num_pages: int, device: torch.device) -> _State:
        rows = -(-num_requests // ALIGNED) * ALIGNED
        shapes = (2, rows), (2, rows, num_pages), (2, rows)
        counts, tables, slots = (
            torch.zeros(shape, dtype=torch.int64, device=device)[:, :num_requests] for shape in shapes
        )
        return cls(counts, tables, slots, torch.zeros(1, dtype=torch.int64, device=device))

    def batch(self, token_ids: Tensor) -> Batch:
        """Returns a batch of views of these numbers, with one token per request."""
        count, device = self.slots.shape[1], self.slots.device
        full, window = (KvView(page_table=self.page_tables[kind], slots=self.slots[kind]) for kind in range(2))
        return Batch(
            token_ids=token_ids,
            positions=self.counts[0],
            kv_lens=self.counts[1],
            full=full,
            window=window,
            query_starts=torch.arange(count + 1, device=device),
            logit_rows=torch.arange(count, device=device),
            num_tokens=self.num_tokens,
        )

"""One decoding step of any number of requests through the network, over tensors that stay; knows no graph.

As `DecodeStep`, for what its ops do not compute: more requests, activations rounded to MXFP4, other shapes. Rows
without a request compute a token of their own in a page that nobody owns, without experts, and stay where they are.

Shape letters: T requests with one token each, V vocabulary, N pages a request can hold, S page size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from firesteel.errors import UserError
from firesteel.model.gpt_oss import GptOss
from firesteel.model.report import Report
from firesteel.types import Batch, KvCache, KvView

ALIGNED = 16  # requests: every tensor begins at a multiple of 128 bytes, so kernels are compiled for one alignment


class NetworkStep:
    """`load` a batch, then `run` as often as its pages have room; `report.token_ids` holds the last tokens."""

    def __init__(
        self, model: GptOss, cache: KvCache, *, num_requests: int, num_pages: int, idle_page: int, logits: Tensor
    ) -> None:
        """`num_pages` is the width of page tables; `logits` [T or more, V] fp32 are written by each run."""
        self.model = model
        self.cache = cache
        self.idle_page = idle_page
        self.num_requests, self.num_pages = num_requests, num_pages
        self.report = Report.new(num_requests, model.weights.embedding.device)
        self.state = _State.new(num_requests, num_pages, self.report.both.device)
        self.batch = self.state.batch(self.report.token_ids)
        self.advances = torch.zeros_like(self.batch.positions)  # 1 where there is a request
        self.logits = logits[:num_requests]
        self.rest()

    @property
    def page_size(self) -> int:
        return self.cache.keys[0].shape[2]

    @torch.inference_mode()
    def rest(self, first: int = 0) -> None:
        """Leaves the rows from `first` on without a request."""
        batch = self.batch
        for numbers, value in ((batch.token_ids, 0), (batch.positions, 0), (batch.kv_lens, 1), (self.advances, 0)):
            numbers[first:] = value
        self.state.num_tokens.fill_(first)
        for view in (batch.full, batch.window):
            view.page_table[first:] = self.idle_page
            view.slots[first:] = self.idle_page * self.page_size

    @torch.inference_mode()
    def load(self, batch: Batch) -> None:
        """The first inputs, of as many requests as there are rows or fewer."""
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
        """[T, V] fp32 logits of the token that was sampled; inputs are then those of the next step."""
        logits = self.model.logits(self.model.forward(self.batch, self.cache), self.logits)
        torch.max(logits, dim=-1, out=(self.report.best, self.report.token_ids))
        self._advance()
        return logits

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Launches every kernel that `run` launches, by layers of each kind only."""
        model = self.model
        logits = model.logits(model.forward(self.batch, self.cache, model.num_layers_of_each_kind), self.logits)
        torch.max(logits, dim=-1, out=(self.report.best, self.report.token_ids))
        self._advance()

    @torch.inference_mode()
    def feed(self, token_ids: Tensor) -> None:
        """The next step's tokens in place of the likeliest, for the first rows."""
        self.batch.token_ids[: len(token_ids)] = token_ids

    @torch.inference_mode()
    def add_pages(self, rows: Tensor, columns: Tensor, full: Tensor, window: Tensor) -> None:
        """The tokens to come of `rows` are the first of these pages."""
        add_pages(self.batch.full, rows, columns, full, self.page_size)
        add_pages(self.batch.window, rows, columns, window, self.page_size)

    def copy(self) -> list[Tensor]:
        """Of the inputs."""
        return [tensor.clone() for tensor in self._inputs()]

    def restore(self, copied: list[Tensor]) -> None:
        """To what `copy` gave."""
        for tensor, old in zip(self._inputs(), copied, strict=True):
            tensor.copy_(old)

    def _inputs(self) -> Iterator[Tensor]:
        batch = self.batch
        yield from (batch.token_ids, batch.positions, batch.kv_lens, self.advances, self.state.num_tokens)
        for view in (batch.full, batch.window):
            yield from (view.page_table, view.slots)

    def _advance(self) -> None:
        """Few kernels, each on all that it can serve: they cost their launch."""
        state, page_size = self.state, self.page_size
        state.counts.add_(self.advances)
        columns = (self.batch.positions // page_size).clamp_(max=self.num_pages - 1)
        pages = state.page_tables.gather(2, columns.expand(2, -1)[:, :, None])[:, :, 0]
        torch.add(self.batch.positions % page_size, pages, alpha=page_size, out=state.slots)


def add_pages(view: KvView, rows: Tensor, columns: Tensor, pages: Tensor, page_size: int) -> None:
    """In place, in tables and slots."""
    view.page_table.index_put_((rows, columns), pages)
    view.slots.index_copy_(0, rows, pages * page_size)


@dataclass(frozen=True, slots=True)
class _State:
    """The numbers of a batch, those that change alike side by side."""

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
        """Views of these numbers: one token a request."""
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

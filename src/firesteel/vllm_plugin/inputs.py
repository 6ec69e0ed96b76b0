"""The inputs of a step in our types and page numbers, taken over from vLLM's tensors by one kernel.

vLLM counts pages of keys and values together: its block b is our page 2b. Rows from the number of tokens on are
padding: they store nothing and use no expert. In decoding steps, where the fused kernels compute every row, they
write to vLLM's block 0, which belongs to nobody.

Shape letters: T tokens, R requests, N pages that a request can hold, H hidden.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from firesteel.types import Batch, KvView
from firesteel.vllm_plugin.step import VllmStep

ALIGNED = 16  # numbers: every tensor begins at a multiple of 128 bytes, so kernels are compiled for one alignment


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """Room for the largest step; smaller ones use the first rows. Only one step runs at a time."""

    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    full_slots: Tensor  # [T] int64
    window_slots: Tensor  # [T] int64
    query_starts: Tensor  # [R+1] int64
    kv_lens: Tensor  # [R] int64
    logit_rows: Tensor  # [R] int64: the last row of each request; of padding, that of the first request
    num_tokens: Tensor  # [1] int64
    full_table: Tensor  # [R, N or more] int64
    window_table: Tensor  # [R, N or more] int64
    num_pages: int  # N
    page_size: int
    window: int  # tokens that a window layer sees

    @classmethod
    def new(
        cls,
        device: torch.device,
        *,
        num_tokens: int,
        num_requests: int,
        num_pages: int,
        page_size: int,
        window: int,
    ) -> StepInputs:
        integers = partial(torch.zeros, dtype=torch.int64, device=device)
        width = -(-num_pages // ALIGNED) * ALIGNED
        return cls(
            token_ids=integers(num_tokens),
            positions=integers(num_tokens),
            full_slots=integers(num_tokens),
            window_slots=integers(num_tokens),
            query_starts=integers(num_requests + 1),
            kv_lens=integers(num_requests),
            logit_rows=integers(num_requests),
            num_tokens=integers(1),
            full_table=integers(num_requests, width),
            window_table=integers(num_requests, width),
            num_pages=num_pages,
            page_size=page_size,
            window=window,
        )

    def prompt_batch(self, tokens: int, requests: int) -> Batch:
        """Returns views of the first rows for a step with prompts, with page tables as wide as our engine's.

        The logits of each request's last row are wanted.
        """
        batch, width = self.batch(tokens, requests), self.num_pages
        return replace(
            batch,
            full=replace(batch.full, page_table=batch.full.page_table[:, :width]),
            window=replace(batch.window, page_table=batch.window.page_table[:, :width]),
            logit_rows=self.logit_rows[:requests],
        )

    def batch(self, tokens: int, requests: int) -> Batch:
        """Returns views of the first rows, for the ops of the network; the logits of all rows are wanted."""
        return Batch(
            token_ids=self.token_ids[:tokens],
            positions=self.positions[:tokens],
            query_starts=self.query_starts[: requests + 1],
            kv_lens=self.kv_lens[:requests],
            full=KvView(page_table=self.full_table[:requests], slots=self.full_slots[:tokens]),
            window=KvView(page_table=self.window_table[:requests], slots=self.window_slots[:tokens]),
            logit_rows=self.token_ids[:tokens],  # as many as there are tokens: all
            num_tokens=self.num_tokens,
        )

    def rest(self) -> None:
        """Sets inputs with which a step stores nothing."""
        for slots in (self.full_slots, self.window_slots):
            slots.fill_(-1)
        rows, requests = (self.token_ids, self.positions), (self.query_starts, self.kv_lens, self.logit_rows)
        for numbers in (*rows, *requests, self.num_tokens):
            numbers.zero_()

    def load_by_torch(self, step: VllmStep, tokens: int, requests: int) -> None:
        """The reference of the kernel."""
        count, given = int(step.query_starts[-1]), step.num_requests
        pairs = (
            (self.token_ids, step.token_ids, 0),
            (self.positions, step.positions, 0),
            (self.full_slots, self._convert(step.full_slots), -1),
            (self.window_slots, self._convert(step.window_slots), -1),
        )
        for ours, theirs, padding in pairs:
            ours[:count] = theirs[:count]
            ours[count:tokens] = padding
        self.query_starts[: given + 1] = step.query_starts
        self.query_starts[given + 1 : requests + 1] = count
        self.kv_lens[:given] = step.kv_lens
        self.kv_lens[given:requests] = 0
        last = (step.query_starts[1:] - 1).clamp(min=0)
        self.logit_rows[:given] = last
        self.logit_rows[given:requests] = last[0]
        self.num_tokens.fill_(count)
        for table, blocks in ((self.full_table, step.full_table), (self.window_table, step.window_table)):
            width = min(table.shape[1], blocks.shape[1])
            table[:given, :width] = 2 * blocks[:, :width]

    def _convert(self, slots: Tensor) -> Tensor:
        """Returns our slots: those of page 2b for block b; -1 stays."""
        return torch.where(slots < 0, -1, slots + slots // self.page_size * self.page_size)

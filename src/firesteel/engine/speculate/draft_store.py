"""Drafting steps ready to be launched, one per padded size, and the choice of steps for the rows of a step.

They are made, and on a GPU captured, at first use or before. Rows of prompts, of which there may be many, are
stored op by op; what follows them is drafted in a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from firesteel.engine.speculate.kept_span import KeptSpan, PendingDrafts, lay_out_kept, split_spans
from firesteel.engine.step.batch import upload_batch
from firesteel.engine.step.making import PaddedStore
from firesteel.engine.step.step_store import StepStore
from firesteel.engine.transfer import upload_ints
from firesteel.model.drafters.draft_sizes import DraftSize, DraftSizes
from firesteel.model.drafters.draft_step import DraftStep, HostDraft
from firesteel.model.drafters.drafter import DraftContext, Drafter
from firesteel.model.graphs import StepGraph
from firesteel.types import Batch, KvView


@dataclass(frozen=True, slots=True)
class ReadyDraft:
    """A drafting step and the function that launches it."""

    step: DraftStep
    launch: Callable[[], Tensor]  # does not wait for a GPU; returns tokens [R, K] that the next launch overwrites


class DraftStore(PaddedStore[DraftSize, ReadyDraft]):
    """The drafting steps of an engine, by padded size."""

    def __init__(self, drafter: Drafter, decoding: StepStore, padded: DraftSizes, *, eager: bool = False) -> None:
        """Makes no step yet. The drafter reads what the steps of `decoding` keep.

        `eager` runs padded steps without a capture, also on a CPU, which else has none.
        """
        super().__init__(decoding.memory)
        assert decoding.memory.taps is not None
        self.drafter, self.padded, self.device = drafter, padded, decoding.device
        self.ledger = decoding.model.kernels.ledger
        self.captures = decoding.device.is_cuda and decoding.config.cuda_graphs
        self.is_on = self.captures or eager
        self.features = decoding.memory.taps.rows  # [.., F], written by the target's steps
        self.page_size, self.idle_page = decoding.page_size, decoding.idle_page
        self.num_pages = -(-decoding.max_context // decoding.page_size)  # that a request can hold
        self.num_launched = 0
        self.num_stored_outside = 0  # times that many rows were stored op by op
        self.num_off = 0  # times that all was computed op by op, because graphs are off

    def sizes(self) -> list[DraftSize]:
        """Returns the sizes of all steps that may be needed."""
        return self.padded.list_all() if self.is_on else []

    @torch.inference_mode()
    def call_ops(self) -> None:
        """Calls every op as the steps do and keeps no step; used inside `compile_ahead`."""
        for size in self.sizes():
            self._new_step(size).run()

    @torch.inference_mode()
    def call_outside(self, num_rows: int) -> None:
        """Calls the ops of rows that are computed op by op; nothing is stored of them."""
        device, reach = self.device.torch_device, self.drafter.reach
        zeros = torch.zeros(num_rows, dtype=torch.int64, device=device)
        table = torch.full((1, reach // self.page_size + 1), self.idle_page, device=device)
        view = KvView(page_table=table, slots=zeros - 1)
        batch = Batch(
            token_ids=zeros,
            positions=zeros,
            query_starts=num_rows * torch.arange(2, device=device),
            kv_lens=torch.ones(1, dtype=torch.int64, device=device),
            full=view,
            window=view,
            logit_rows=zeros[:0],
        )
        context = DraftContext(batch=batch, features=self.features[:num_rows], followers=zeros, next_ids=zeros[:1])
        self.drafter.draft(context, [0 if self.is_on else self.padded.most])

    def draft(self, spans: Sequence[KeptSpan], counts: Sequence[int], features: Tensor) -> PendingDrafts:
        """Launches the storing of rows, and the drafting of `counts` tokens after each span; waits for nothing.

        `features` [T, F] are the residuals of all rows of the target's last step.
        """
        pending = PendingDrafts(counts)
        if not self.is_on:
            self.num_off += 1
            pending.add(range(len(spans)), self._run(spans, counts, features))
            return pending
        assert features.data_ptr() == self.features.data_ptr(), "the target's steps write one tensor"
        stored, others = split_spans(spans, counts, self.padded.rows_each)
        if stored:
            self.num_stored_outside += 1
            self._run(stored, [0] * len(stored), features)
        places = list(others)
        for begin in range(0, len(places), self.padded.most_requests):
            group = places[begin : begin + self.padded.most_requests]
            drafted = self._launch([others[place] for place in group], [counts[place] for place in group])
            pending.add(group, drafted)
        return pending

    def _launch(self, spans: Sequence[KeptSpan], counts: Sequence[int]) -> Tensor:
        """Launches a padded step."""
        ready = self._get(self.padded.find(len(spans), max(counts)))
        host = HostDraft(
            batch=lay_out_kept(spans, self.page_size, self.drafter.reach),
            rows=np.concatenate([kept.rows for kept in spans]),
            followers=np.concatenate([kept.followers for kept in spans]),
            counts=np.array(counts, dtype=np.int64),
        )
        ready.step.load(host)
        self.num_launched += 1
        return ready.launch()

    def _run(self, spans: Sequence[KeptSpan], counts: Sequence[int], features: Tensor) -> Tensor:
        """Launches op by op."""
        rows, device = np.concatenate([kept.rows for kept in spans]), self.device.torch_device
        is_first = rows[-1] == len(rows) - 1  # they are the first rows, as they rise
        context = DraftContext(
            batch=upload_batch(lay_out_kept(spans, self.page_size, self.drafter.reach), device),
            features=features[: len(rows)] if is_first else features[upload_ints(rows, device)],
            followers=upload_ints(np.concatenate([kept.followers for kept in spans]), device),
            next_ids=upload_ints([kept.followers[-1] for kept in spans], device),
        )
        return self.drafter.draft(context, counts)

    def _describe(self, size: DraftSize) -> str:
        return f"a step that drafts {size.drafted} tokens of {size.requests} requests"

    def _make(self, size: DraftSize) -> ReadyDraft:
        step = self._new_step(size)
        if not self.captures:
            return ReadyDraft(step, step.run)
        graph = StepGraph(step.run, self.ledger, self.device, undo=step.rest, pool=self.memory.pool)
        return ReadyDraft(step, cast(Callable[[], Tensor], graph.replay))

    def _new_step(self, size: DraftSize) -> DraftStep:
        return DraftStep(
            self.drafter, size, num_pages=self.num_pages, idle_page=self.idle_page, features=self.features
        )

"""A padded step of a draft network over tensors that stay in place, so that it can be captured.

Padding rows store no keys or values; padding requests want no tokens, and what is drafted for them attends to the
idle page, which no request owns.

Shape letters: T rows and R requests, both padded, F features, N pages that a request can hold, K drafted tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from firesteel.errors import UserError
from firesteel.model.drafters.draft_sizes import DraftSize
from firesteel.model.drafters.drafter import DraftContext, Drafter
from firesteel.model.host_batch import ALIGNED, NOT_STORED, HostBatch, Ints, StaticInts
from firesteel.types import Batch, KvView

FROM_BATCH = {"positions": "positions", "slots": "full_slots", "query_starts": "query_starts", "kv_lens": "kv_lens"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostDraft:
    """The numbers of a drafting step on the host, without padding."""

    batch: HostBatch  # of which drafters read places, lengths and the full layers' pages
    rows: Ints  # [T], where the target's step left the residuals of each row
    followers: Ints  # [T], the token after each row
    counts: Ints  # [R], tokens wanted

    @property
    def next_ids(self) -> Ints:
        return self.followers[self.batch.query_starts[1:] - 1]


class DraftStep:
    """A drafting step: `load` its numbers, then `run`."""

    def __init__(
        self, drafter: Drafter, size: DraftSize, *, num_pages: int, idle_page: int, features: Tensor
    ) -> None:
        """Allocates inputs with page tables of `num_pages`.

        Each run reads `features` [.., F], which the target's steps write.
        """
        self.drafter, self.size, self.idle_page, self.features = drafter, size, idle_page, features
        self.num_pages, self._width = num_pages, -(-num_pages // ALIGNED) * ALIGNED
        counts = dict.fromkeys(("rows", "followers", "positions", "slots"), size.rows)
        counts |= {"query_starts": size.requests + 1}
        counts |= dict.fromkeys(("kv_lens", "next_ids", "wanted"), size.requests)
        counts |= {"page_table": size.requests * self._width}
        self._ints = StaticInts(counts, features.device)
        self.rest()

    @torch.inference_mode()
    def rest(self) -> None:
        """Sets inputs with which a run stores nothing."""
        self._load({name: np.zeros(0, dtype=np.int64) for name in (*FROM_BATCH, *_OWN)}, self._new_table(), 0)

    @torch.inference_mode()
    def load(self, host: HostDraft) -> None:
        """Sets the inputs of the next run with one copy; does not wait for the device."""
        batch, size = host.batch, self.size
        if batch.num_tokens > size.rows or batch.num_requests > size.requests or max(host.counts) > size.drafted:
            raise UserError(
                f"a step that drafts {size.drafted} tokens for {size.requests} requests of {size.rows} rows was "
                f"given {max(host.counts)} for {batch.num_requests} of {batch.num_tokens}"
            )
        table, given = self._new_table(), batch.full_table[:, : self.num_pages]
        table[: len(given), : given.shape[1]] = given
        ours = {"rows": host.rows, "followers": host.followers, "next_ids": host.next_ids, "wanted": host.counts}
        theirs = {name: getattr(batch, field) for name, field in FROM_BATCH.items()}
        self._load(ours | theirs, table, batch.num_tokens)

    @torch.inference_mode()
    def run(self) -> Tensor:
        """Returns drafted tokens [R, K] int64; what exceeds a request's count is undefined."""
        ints = self._ints
        table = ints["page_table"].view(self.size.requests, self._width)[:, : self.num_pages]
        view = KvView(page_table=table, slots=ints["slots"])
        batch = Batch(
            token_ids=ints["followers"],  # read by no drafter
            positions=ints["positions"],
            query_starts=ints["query_starts"],
            kv_lens=ints["kv_lens"],
            full=view,
            window=view,
            logit_rows=ints["rows"][:0],
        )
        context = DraftContext(
            batch=batch,
            features=self.features[ints["rows"]],
            followers=ints["followers"],
            next_ids=ints["next_ids"],
        )
        return self.drafter.compute(context, ints["wanted"], self.size.drafted)

    def _new_table(self) -> Ints:
        return np.full((self.size.requests, self._width), self.idle_page, dtype=np.int64)

    def _load(self, given: dict[str, Ints], table: Ints, num_rows: int) -> None:
        padding = {"slots": NOT_STORED, "query_starts": num_rows, "kv_lens": 1}
        self._ints.load(given | {"page_table": table.ravel()}, padding)


_OWN = ("rows", "followers", "next_ids", "wanted")

"""A padded step of prompts, and of requests that decode beside them, over tensors that stay in place.

Padding rows follow the real ones. They belong to no request, store no keys or values and use no expert, so they
change no real row and read no expert weights; their logits are not computed.

Shape letters: T tokens, R requests and rows with logits, both padded, V vocabulary, N pages that a request can
hold.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from firesteel.errors import UserError
from firesteel.model.gpt_oss import GptOss
from firesteel.model.host_batch import ALIGNED, NOT_STORED, HostBatch, StaticInts, send_tables
from firesteel.model.prompt_sizes import PromptSize
from firesteel.types import Batch, KvCache, KvView, Taps


class PromptStep:
    """A padded prompt step: `load` the numbers of a batch, then `run`."""

    def __init__(
        self,
        model: GptOss,
        cache: KvCache,
        size: PromptSize,
        *,
        num_pages: int,
        logits: Tensor,
        taps: Taps | None = None,
    ) -> None:
        """Allocates inputs with page tables of `num_pages`.

        Each run writes `logits` [R or more, V] fp32, and `taps` of at least T rows: those of padding mean nothing.
        """
        self.model = model
        self.cache = cache
        self.size = size
        self.taps = taps
        self.logits = logits[: size.requests]
        device = model.weights.embedding.device
        self._ints = StaticInts(_count(size), device)
        width = -(-num_pages // ALIGNED) * ALIGNED
        self._tables = torch.zeros(2, size.requests, width, dtype=torch.int64, device=device)
        self._num_pages = num_pages
        self.batch = self._view()
        self.rest()

    @torch.inference_mode()
    def rest(self) -> None:
        """Sets inputs with which a run stores nothing."""
        self._load(HostBatch.empty())

    @torch.inference_mode()
    def load(self, batch: HostBatch) -> None:
        """Sets the inputs of the next run with two copies; does not wait for the device."""
        requests, width = batch.full_table.shape
        if width > self._num_pages:
            raise UserError(f"page tables of {width} pages do not fit into {self._num_pages}")
        logits = len(batch.logit_rows)
        if batch.num_tokens > self.size.tokens or max(requests, logits) > self.size.requests:
            raise UserError(
                f"a step of {self.size.tokens} tokens of {self.size.requests} requests was given "
                f"{batch.num_tokens} of {requests}, and {logits} rows with logits"
            )
        self._load(batch)
        send_tables(batch.full_table, batch.window_table, self._tables)

    @torch.inference_mode()
    def run(self) -> Tensor:
        """Returns fp32 logits [R, V]: those of the batch's logit rows, then copies of the first.

        The next run overwrites them.
        """
        return self._run()

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Launches every kernel that `run` launches, but computes only the first layers of each kind."""
        self._run(self.model.num_layers_of_each_kind)

    def _run(self, num_layers: int | None = None) -> Tensor:
        hidden = self.model.forward(self.batch, self.cache, num_layers, self.taps)
        return self.model.logits(hidden, self.logits)

    def _load(self, batch: HostBatch) -> None:
        given = {name: getattr(batch, name) for name in _count(self.size) if name != "num_tokens"}
        padding = {
            "query_starts": batch.num_tokens,
            "full_slots": NOT_STORED,
            "window_slots": NOT_STORED,
            "logit_rows": int(batch.logit_rows[0]) if len(batch.logit_rows) else 0,
        }
        self._ints.load({**given, "num_tokens": np.array([batch.num_tokens])}, padding)

    def _view(self) -> Batch:
        parts, (full, window) = self._ints, self._tables[:, :, : self._num_pages]
        return Batch(
            token_ids=parts["token_ids"],
            positions=parts["positions"],
            query_starts=parts["query_starts"],
            kv_lens=parts["kv_lens"],
            logit_rows=parts["logit_rows"],
            num_tokens=parts["num_tokens"],
            full=KvView(page_table=full, slots=parts["full_slots"]),
            window=KvView(page_table=window, slots=parts["window_slots"]),
        )


def _count(size: PromptSize) -> dict[str, int]:
    """Returns how many numbers of each kind a step has."""
    return {
        "token_ids": size.tokens,
        "positions": size.tokens,
        "full_slots": size.tokens,
        "window_slots": size.tokens,
        "query_starts": size.requests + 1,
        "kv_lens": size.requests,
        "logit_rows": size.requests,
        "num_tokens": 1,
    }

"""The numbers that a decoding step reads, in place on the device: a batch replaces them with two copies.

Among them is the result: the last tokens and the logit of each, side by side, so one copy takes both to the host.

Shape letters: T rows with one token each, N pages that a request can hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from firesteel.model.host_batch import HostBatch, Ints, StaticInts, new_tables, send_tables

_BY_ROW = ("positions", "kv_lens", "full_slots", "window_slots")  # two that change alike stand side by side


@dataclass(frozen=True, slots=True)
class StepResult:
    """The token and its logit for each of T requests."""

    both: Tensor  # [2, T] int64

    @classmethod
    def new(cls, num_requests: int, device: torch.device) -> StepResult:
        return cls(torch.zeros(2, num_requests, dtype=torch.int64, device=device))

    @property
    def token_ids(self) -> Tensor:
        """The token ids [T], int64."""
        return self.both[0]

    @property
    def best(self) -> Tensor:
        """The logit of each token [T], fp32; not finite if the logits are NaN or infinite."""
        return self.both[1].view(torch.float32)[: self.both.shape[1]]


class StepInts:
    """Tokens, places and page tables of T rows; rows without a request are in the idle page."""

    def __init__(
        self,
        num_requests: int,
        num_pages: int,
        device: torch.device,
        *,
        more: Mapping[str, int],
        idle_page: int = 0,
        page_size: int = 1,
    ) -> None:
        """Allocates zeros; `more` has the lengths of further inputs by name."""
        self.num_requests, self._idle_page, self._idle_slot = num_requests, idle_page, idle_page * page_size
        counts = {"result": 2 * num_requests, **dict.fromkeys(_BY_ROW, num_requests), **more}
        self._ints = StaticInts(counts, device)
        self._tables = new_tables(num_requests, num_pages, device)
        self.result = StepResult(self._ints["result"].view(2, num_requests))
        self.counts = self._ints.stack("positions", "kv_lens")  # [2, T]
        self.slots = self._ints.stack("full_slots", "window_slots")  # [2, T]
        self.page_tables = self._tables[:, :num_requests]  # [2, T, N]

    def __getitem__(self, name: str) -> Tensor:
        return self._ints[name]

    def load(self, batch: HostBatch, more: Mapping[str, Ints]) -> None:
        """Sets the inputs of the next step, which has at most T rows; does not wait for the device."""
        full, window = self._pad(batch.full_table), self._pad(batch.window_table)
        send_tables(full, window, self._tables)
        ours = {name: getattr(batch, name) for name in _BY_ROW}
        padding = {"kv_lens": 1, "full_slots": self._idle_slot, "window_slots": self._idle_slot}
        self._ints.load({"result": batch.token_ids, **ours, **more}, padding)

    def _pad(self, table: Ints) -> Ints:
        requests, width = table.shape
        padded = np.full((self.num_requests, max(width, 1)), self._idle_page, dtype=np.int64)
        padded[:requests, :width] = table
        return padded

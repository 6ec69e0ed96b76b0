"""The numbers of a batch on the host, and their copies in the inputs of a step that stays in place.

Shape letters: T tokens, R requests, L rows with logits, N pages of the longest request, W pages of a step's tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from firesteel.errors import UserError
from firesteel.types import Batch

Ints = npt.NDArray[np.int64]
ALIGNED = 16  # numbers: every input begins at a multiple of 128 bytes, so kernels are compiled for one alignment
NOT_STORED = -1  # slot of a row whose keys and values are not stored
NO_PADDING: Mapping[str, int] = {}
WHOLE = 1 << 13  # numbers: page tables up to this size are copied whole, as a part takes a copy and a launch


@dataclass(frozen=True, slots=True, kw_only=True)
class HostBatch:
    """Has the fields of `Batch` as host arrays, without padding."""

    token_ids: Ints  # [T]
    positions: Ints  # [T]
    query_starts: Ints  # [R+1]
    kv_lens: Ints  # [R]
    full_table: Ints  # [R, N]
    full_slots: Ints  # [T]
    window_table: Ints  # [R, N]
    window_slots: Ints  # [T]
    logit_rows: Ints  # [L]

    @classmethod
    def empty(cls) -> HostBatch:
        """Returns a batch of no request."""
        none, tables = np.zeros(0, dtype=np.int64), np.zeros((0, 0), dtype=np.int64)
        return cls(
            token_ids=none,
            positions=none,
            query_starts=none,
            kv_lens=none,
            full_table=tables,
            full_slots=none,
            window_table=tables,
            window_slots=none,
            logit_rows=none,
        )

    @classmethod
    def of(cls, batch: Batch) -> HostBatch:
        """Copies a batch to the host, for measurements and tests; waits for the device."""
        return cls(
            token_ids=batch.token_ids.cpu().numpy(),
            positions=batch.positions.cpu().numpy(),
            query_starts=batch.query_starts.cpu().numpy(),
            kv_lens=batch.kv_lens.cpu().numpy(),
            full_table=batch.full.page_table.cpu().numpy(),
            full_slots=batch.full.slots.cpu().numpy(),
            window_table=batch.window.page_table.cpu().numpy(),
            window_slots=batch.window.slots.cpu().numpy(),
            logit_rows=batch.logit_rows.cpu().numpy(),
        )

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_requests(self) -> int:
        return len(self.kv_lens)


class StaticInts:
    """Named int64 tensors side by side on the device, so that one copy sets them all."""

    def __init__(self, counts: Mapping[str, int], device: torch.device) -> None:
        """Allocates zeros, as many for each name as `counts` says."""
        self._places = _lay_out(counts)
        self._numbers = torch.zeros(self._end, dtype=torch.int64, device=device)

    def __getitem__(self, name: str) -> Tensor:
        return self._numbers[self._places[name]]

    def stack(self, first: str, second: str) -> Tensor:
        """Returns two inputs of equal length [2, ...], of which the second was named right after the first."""
        ours, theirs = self._places[first], self._places[second]
        step, count = theirs.start - ours.start, ours.stop - ours.start
        assert 0 < step < count + ALIGNED and theirs.stop - theirs.start == count, (first, second)
        return self._numbers.as_strided((2, count), (step, 1), ours.start)

    @property
    def _end(self) -> int:
        return max(int(place.stop) for place in self._places.values())

    def load(self, given: Mapping[str, Ints], padding: Mapping[str, int] = NO_PADDING) -> None:
        """Sets all inputs with one copy that does not wait for the device.

        `given` has a name's first numbers; `padding`, 0 by default, fills the rest.
        """
        numbers = np.zeros(self._end, dtype=np.int64)
        for name, place in self._places.items():
            values = given[name]
            numbers[place.start : place.start + len(values)] = values
            if rest := padding.get(name, 0):
                numbers[place.start + len(values) : place.stop] = rest
        send(torch.from_numpy(numbers), self._numbers)


def new_tables(num_requests: int, num_pages: int, device: torch.device) -> Tensor:
    """Returns page tables [2, R or more, W] of full and of window layers, each of which begins aligned."""
    step = ALIGNED // gcd(ALIGNED, num_pages)
    rows = -(-num_requests // step) * step
    return torch.zeros(2, rows, num_pages, dtype=torch.int64, device=device)


def send_tables(full: Ints, window: Ints, tables: Tensor) -> None:
    """Copies page tables [R, N] to the first rows and pages of `tables` [2, .., W]; does not wait for the device.

    What else `tables` hold becomes 0 or stays.
    """
    requests, width = full.shape
    if width > tables.shape[2]:
        raise UserError(f"page tables of {width} pages do not fit into {tables.shape[2]}")
    is_whole = tables.numel() <= WHOLE
    target = tables if is_whole else tables[:, :requests, :width]
    numbers = np.zeros(target.shape, dtype=np.int64)
    numbers[0, :requests, :width], numbers[1, :requests, :width] = full, window
    send(torch.from_numpy(numbers), target)


def count_stored(batch: HostBatch, page_size: int) -> Ints:
    """Returns the tokens [T] that each row of a decoding step reads and no row of the step writes.

    Rows of one request see each other's tokens: the slot that one writes is the slot of that position in the page
    table of the other. The first position so written ends what was stored before.
    """
    places = batch.positions
    read = batch.full_table[:, places // page_size] * page_size + places % page_size  # [T, T]
    stored: Ints = np.where(read == batch.full_slots, places, places[:, None]).min(1)
    return stored


def send(numbers: Tensor, target: Tensor) -> None:
    """Copies to `target`; on CUDA through pinned memory, which torch keeps until the copy has run."""
    target.copy_(numbers.pin_memory() if target.is_cuda else numbers, non_blocking=True)


def _lay_out(counts: Mapping[str, int]) -> dict[str, slice]:
    places, begin = {}, 0
    for name, count in counts.items():
        places[name] = slice(begin, begin + count)
        begin += -(-count // ALIGNED) * ALIGNED
    return places

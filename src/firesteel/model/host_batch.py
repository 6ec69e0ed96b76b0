"""The numbers of a batch on the host, and their copies in the inputs of a step that stays in place.

Shape letters: T tokens, R requests, L rows with logits, N pages of the longest request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Ints = npt.NDArray[np.int64]
ALIGNED = 16  # numbers: every input begins at a multiple of 128 bytes, so kernels are compiled for one alignment
NOT_STORED = -1  # slot of a row whose keys and values are not stored
NO_PADDING: Mapping[str, int] = {}


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


def send(numbers: Tensor, target: Tensor) -> None:
    """Copies to `target`; on CUDA through pinned memory, which torch keeps until the copy has run."""
    target.copy_(numbers.pin_memory() if target.is_cuda else numbers, non_blocking=True)


def _lay_out(counts: Mapping[str, int]) -> dict[str, slice]:
    places, begin = {}, 0
    for name, count in counts.items():
        places[name] = slice(begin, begin + count)
        begin += -(-count // ALIGNED) * ALIGNED
    return places

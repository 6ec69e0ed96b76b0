"""Integer inputs of a step that stay in place, side by side in one tensor, so that one copy sets them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from firesteel.model.host_batch import Ints

ALIGNED = 16  # numbers: every input begins at a multiple of 128 bytes, so kernels are compiled for one alignment
NO_PADDING: Mapping[str, int] = {}


class StaticInts:
    """Named int64 tensors on the device; `load` sets them all."""

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

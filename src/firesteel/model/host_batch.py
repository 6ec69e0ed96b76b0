"""The numbers of a batch on the host, before they are copied to the device.

Shape letters: T tokens, R requests, L rows with logits, N pages of the longest request.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


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

"""Duration of steps by their number of tokens, learnt from the steps that ran.

The duration depends mostly on the padded number of tokens. For sizes without a measurement, it is interpolated
between the next smaller and the next larger measured size. Below the smallest measured size it is constant; above
the largest, half of it grows with the tokens, because a step reads the weights whatever its number of tokens.

More tokens never take less time, and never more than in proportion. So what other sizes took limits what is
expected of a size, and a step that took seconds, because a kernel was compiled, does not rule its size out.
"""

from __future__ import annotations

from bisect import bisect_left

from firesteel.model.prompt_sizes import TOKENS

LEAST_TOKENS = 64  # of prompts per step beside decoding requests, so that prompts always progress
FIRST_TOKENS = 512  # limit of a step before the first measurement
LAST_WEIGHT = 0.5  # of the last step against all earlier ones
OUTLIER = 2.0  # a single step counts at most as this multiple of the expected time
DECAY = 0.001  # per step, of times beyond the bound, so that such sizes are tried again


class StepCostModel:
    """Learnt step durations, and the number of prompt tokens that keeps a step within the bound."""

    def __init__(self, bound_ms: float, most_tokens: int) -> None:
        """Bounds steps beside decoding requests to `bound_ms`; no step has more than `most_tokens`."""
        self.bound_ms = bound_ms
        self.sizes = _list_sizes(most_tokens)
        self._measured_ms: dict[int, float] = {}  # by size

    def add(self, num_tokens: int, ms: float) -> None:
        """Learns that a step of `num_tokens` took `ms`."""
        for other in self._measured_ms:
            if (expected := self.predict(other)) > self.bound_ms:
                self._measured_ms[other] = expected * (1 - DECAY)
        size = self.sizes[min(bisect_left(self.sizes, num_tokens), len(self.sizes) - 1)]
        before = self.predict(size) if self._measured_ms else ms
        if size not in self._measured_ms:
            self._measured_ms[size] = min(ms, OUTLIER * before)
        else:
            self._measured_ms[size] = before + LAST_WEIGHT * (min(ms, OUTLIER * before) - before)

    def predict(self, size: int) -> float:
        """Returns the expected milliseconds of a step of `size` tokens, after at least one `add`."""
        limits = (ms * max(1.0, size / other) for other, ms in self._measured_ms.items())
        return min(self._interpolate(size), *limits)

    def _interpolate(self, size: int) -> float:
        smaller = max((measured for measured in self._measured_ms if measured <= size), default=None)
        larger = min((measured for measured in self._measured_ms if measured >= size), default=None)
        if larger is None:
            assert smaller is not None
            return self._measured_ms[smaller] * (1 + size / smaller) / 2
        if smaller is None or smaller == larger:
            return self._measured_ms[larger]
        share = (size - smaller) / (larger - smaller)
        return self._measured_ms[smaller] + share * (self._measured_ms[larger] - self._measured_ms[smaller])

    def find_room(self, num_decoding: int) -> int:
        """Returns the number of prompt tokens that a step may have beside `num_decoding` decoding requests.

        Together they fill the largest size that stays within the bound.
        """
        if self._measured_ms:
            fitting = [size for size in self.sizes if self.predict(size) <= self.bound_ms]
        else:
            fitting = [FIRST_TOKENS]
        return max((fitting[-1] if fitting else 0) - num_decoding, LEAST_TOKENS)


def _list_sizes(most_tokens: int) -> list[int]:
    """Returns the sizes of prompt steps, then doubled sizes, up to `most_tokens`."""
    sizes = [size for size in TOKENS if size < most_tokens]
    while sizes and 2 * sizes[-1] < most_tokens:
        sizes.append(2 * sizes[-1])
    return [*sizes, most_tokens]

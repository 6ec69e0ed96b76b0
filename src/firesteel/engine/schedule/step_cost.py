"""How long steps take by their number of tokens, learnt from those that ran; knows no clock and no plan.

The number of tokens that a step is padded to decides most of it. What was not seen lies on a line between the next
smaller and the next larger size that was. Below the smallest it takes as long as that; above the largest, half of
that one's time grows with the tokens, as a step reads weights whatever their number.
"""

from __future__ import annotations

from bisect import bisect_left

from firesteel.model.prompt_sizes import TOKENS

LEAST_TOKENS = 64  # of prompts beside requests that decode, so that they get on
FIRST_TOKENS = 512  # that a step may have while nothing is known
NEWS = 0.5  # weight of the last step against all before it
MOST_NEWS = 2.0  # times as long as expected, that a single step is taken for
FORGOTTEN = 0.001  # share of a time beyond the bound that goes with each step: such sizes are tried again


class StepCost:
    def __init__(self, bound_ms: float, most_tokens: int) -> None:
        """Steps beside requests that decode are to take `bound_ms` at most; none has more than `most_tokens`."""
        self.bound_ms = bound_ms
        self.sizes = _list_sizes(most_tokens)
        self._seen: dict[int, float] = {}  # milliseconds by size

    def add(self, num_tokens: int, ms: float) -> None:
        """Learns that a step of `num_tokens` took `ms`."""
        for other, expected in self._seen.items():
            if expected > self.bound_ms:
                self._seen[other] = expected * (1 - FORGOTTEN)
        size = self.sizes[min(bisect_left(self.sizes, num_tokens), len(self.sizes) - 1)]
        before = self._seen.get(size, ms)
        self._seen[size] = before + NEWS * (min(ms, MOST_NEWS * before) - before)

    def foresee(self, size: int) -> float:
        """Returns the milliseconds that a step of one of the sizes takes; there must have been steps."""
        smaller = max((seen for seen in self._seen if seen <= size), default=None)
        larger = min((seen for seen in self._seen if seen >= size), default=None)
        if larger is None:
            assert smaller is not None
            return self._seen[smaller] * (1 + size / smaller) / 2
        if smaller is None or smaller == larger:
            return self._seen[larger]
        share = (size - smaller) / (larger - smaller)
        return self._seen[smaller] + share * (self._seen[larger] - self._seen[smaller])

    def find_room(self, num_decoding: int) -> int:
        """Returns how many tokens of prompts a step may have beside so many requests that decode.

        Together they fill the largest size that keeps to the bound.
        """
        if self._seen:
            fitting = [size for size in self.sizes if self.foresee(size) <= self.bound_ms]
        else:
            fitting = [FIRST_TOKENS]
        return max((fitting[-1] if fitting else 0) - num_decoding, LEAST_TOKENS)


def _list_sizes(most_tokens: int) -> list[int]:
    """Of prompt steps, then each twice the one before, up to `most_tokens`."""
    sizes = [size for size in TOKENS if size < most_tokens]
    while sizes and 2 * sizes[-1] < most_tokens:
        sizes.append(2 * sizes[-1])
    return [*sizes, most_tokens]

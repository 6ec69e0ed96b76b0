"""How many requests and pages decoding steps have; knows only numbers.

Rows without a request meet no expert and cost little, so there are few sizes: all steps that may be needed can be
there before the first request.
"""

from __future__ import annotations

EXACT = 8  # up to so many requests every number has a step of its own
GRAPH_BYTES = 12 << 20  # that one takes on the device beside the tensors of all, about
LEAST_TOKENS = 4096  # that the narrowest page tables reach
WIDER = 8  # times as many tokens as the next narrower ones


def padded_requests(count: int, most: int) -> int:
    """Rows of the step that `count` requests run in: a power of two, or three quarters of one."""
    if count <= EXACT:
        return count
    whole = power_of_two(count)
    return max(count, min(3 * whole // 4 if count <= 3 * whole // 4 else whole, most))


def step_sizes(most: int) -> list[int]:
    """Of the steps that 1 to `most` requests run in."""
    return sorted({padded_requests(count, most) for count in range(1, most + 1)})


def padded_pages(num_tokens: int, page_size: int, most_tokens: int) -> int:
    """Width of page tables that hold `num_tokens`."""
    reach = LEAST_TOKENS
    while reach < num_tokens:
        reach *= WIDER
    return -(-max(min(reach, most_tokens), num_tokens) // page_size)


def reaches(most_tokens: int) -> list[int]:
    """Tokens that page tables of each width hold, the widest last."""
    widths = [LEAST_TOKENS]
    while widths[-1] < most_tokens:
        widths.append(widths[-1] * WIDER)
    return [min(width, most_tokens) for width in widths]


def power_of_two(count: int) -> int:
    """The least one that is not below `count`."""
    return 1 << (count - 1).bit_length()

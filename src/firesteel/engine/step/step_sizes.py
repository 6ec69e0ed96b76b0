"""Numbers of requests and pages that decoding steps are padded to.

Rows without a request use no expert and cost little, so few sizes suffice, and all steps can be made before the
first request.
"""

from __future__ import annotations

EXACT = 8  # requests up to which every number has its own step
GRAPH_BYTES = 12 << 20  # approximate device memory of a graph beside the shared tensors
LEAST_TOKENS = 4096  # that the narrowest page tables hold
WIDER = 8  # factor between the tokens of two adjacent widths


def padded_requests(count: int, most: int) -> int:
    """Returns the rows of the step that `count` requests run in: a power of two, or three quarters of one."""
    if count <= EXACT:
        return count
    whole = power_of_two(count)
    return max(count, min(3 * whole // 4 if count <= 3 * whole // 4 else whole, most))


def step_sizes(most: int) -> list[int]:
    """Returns the rows of all steps that 1 to `most` requests run in."""
    return sorted({padded_requests(count, most) for count in range(1, most + 1)})


def padded_pages(num_tokens: int, page_size: int, most_tokens: int) -> int:
    """Returns the width of page tables that hold `num_tokens`."""
    reach = LEAST_TOKENS
    while reach < num_tokens:
        reach *= WIDER
    return -(-max(min(reach, most_tokens), num_tokens) // page_size)


def reaches(most_tokens: int) -> list[int]:
    """Returns the tokens that page tables of each width hold, the widest last."""
    widths = [LEAST_TOKENS]
    while widths[-1] < most_tokens:
        widths.append(widths[-1] * WIDER)
    return [min(width, most_tokens) for width in widths]


def power_of_two(count: int) -> int:
    """Returns the smallest power of two that is at least `count`."""
    return 1 << (count - 1).bit_length()

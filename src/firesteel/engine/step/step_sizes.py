"""How many requests and pages captured decoding steps have, and how many there are; knows only numbers."""

from __future__ import annotations

EXACT = 16  # up to so many requests every number has a step of its own
MOST_GRAPHS = 48  # kept at a time
GRAPH_BYTES = 12 << 20  # that one takes on the device beside the tensors of all, about
LEAST_TOKENS = 1024  # that the narrowest page tables reach


def padded_requests(count: int, most: int) -> int:
    """Rows of the step that `count` requests run in; at most 12 % of them are padding."""
    stride = max(1, power_of_two(count) // EXACT)
    return max(count, min(-(-count // stride) * stride, most))


def step_sizes(count: int, most: int) -> list[int]:
    """Of the steps that 1 to `count` requests run in."""
    return sorted({padded_requests(one, most) for one in range(1, count + 1)})


def padded_pages(num_tokens: int, page_size: int, most_tokens: int) -> int:
    """Width of page tables that hold `num_tokens`: few widths, each twice the one before."""
    reach = min(max(LEAST_TOKENS, power_of_two(num_tokens)), most_tokens)
    return -(-max(reach, num_tokens) // page_size)


def power_of_two(count: int) -> int:
    """The least one that is not below `count`."""
    return 1 << (count - 1).bit_length()

"""Padded sizes of prompt steps: every step has one, it is the smallest that fits, and there are few."""

import itertools

import pytest

from firesteel.model.prompt_sizes import FEW_TOKENS, TOKENS, PromptSize, find_size, prompt_sizes


@pytest.mark.parametrize("most_requests", [1, 5, 8, 9, 64, 256])
def test_every_step_has_the_smallest_size_that_holds_it(most_requests):
    sizes = prompt_sizes(TOKENS[-1], most_requests)
    for tokens in (*range(1, 300), *range(300, TOKENS[-1] + 1, 61), TOKENS[-1] - 1, TOKENS[-1]):
        for requests in {1, 2, 7, 8, 9, 31, 32, 33, 64, 200, tokens, most_requests}:
            if requests > min(tokens, most_requests):
                continue
            size = find_size(tokens, requests, most_requests)
            holding = [
                size for size in sizes if size.tokens >= max(tokens, requests + 1) and size.requests >= requests
            ]
            assert size in sizes and size == min(holding), (tokens, requests)


def test_edges():
    assert find_size(16, 1, 64) == PromptSize(16, 1) and find_size(17, 1, 64) == PromptSize(32, 1)
    assert find_size(20, 8, 64) == PromptSize(32, 8) and find_size(20, 9, 64) == PromptSize(32, 31)
    assert find_size(16, 15, 64) == PromptSize(16, 15) and find_size(16, 16, 64) == PromptSize(32, 31)
    assert find_size(FEW_TOKENS, 33, 64) == PromptSize(FEW_TOKENS, 64)
    assert find_size(FEW_TOKENS + 1, 2, 64) == PromptSize(256, 64), "with many tokens: one request or the maximum"
    assert find_size(TOKENS[-1], 1, 64) == PromptSize(TOKENS[-1], 1) and find_size(TOKENS[-1] + 1, 1, 64) is None


def test_there_are_few_sizes_and_no_duplicates():
    for budget, most_requests in itertools.product((1, 16, 17, 200, 2048, 8192), (1, 3, 64, 256)):
        sizes = prompt_sizes(budget, most_requests)
        assert len(sizes) == len(set(sizes)) <= 40 and sizes == sorted(sizes)
        for tokens in range(1, min(budget, TOKENS[-1]) + 1):
            assert find_size(tokens, min(tokens, most_requests), most_requests) in sizes
        assert all(size.requests < size.tokens and size.requests <= most_requests for size in sizes)

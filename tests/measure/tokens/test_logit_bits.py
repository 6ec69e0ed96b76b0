"""Bits of logits are counted, and the engine's logits are kept per request and position."""

import torch

from firesteel.measure.tokens.agreement import LogitBits
from firesteel.measure.tokens.logit_bits import compare_logits, count_bits


def test_every_bit_counts_including_the_sign_of_zero_and_of_nan():
    first = torch.tensor([0.0, 1.0, 1.0, float("nan")])
    second = torch.tensor([-0.0, 1.0, 1.0 + 2.0**-23, float("nan")])
    assert count_bits(first, second) == 2
    assert count_bits(first, first.clone()) == 0
    assert count_bits(torch.tensor([0.0]), torch.tensor([-1], dtype=torch.int32).view(torch.float32)) == 32


def test_missing_row_differs_in_every_bit():
    expected = {("a", 3): torch.ones(4), ("b", 3): torch.ones(4), ("c", 3): torch.ones(4)}
    actual = {("a", 3): torch.ones(4), ("c", 3): torch.tensor([1.0, -1.0, 1.0, 1.0]), ("d", 3): torch.ones(4)}
    bits = compare_logits(expected, actual)
    assert bits == LogitBits(rows=3, rows_differing=2, bits_differing=129)
    assert (bits + bits).as_dict() == {"logit_rows": 6, "logit_rows_differing": 4, "logit_bits_differing": 258}

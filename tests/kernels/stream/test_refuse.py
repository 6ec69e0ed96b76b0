"""Refusals that all decode kernels share, with their reasons."""

import torch

from firesteel.kernels.stream.refuse import refuse_here, refuse_layout, refuse_strides, refuse_tokens, refuse_types


def test_tokens_types_and_layout_are_refused_with_the_reason():
    x = torch.zeros(8, 64, dtype=torch.bfloat16)
    assert refuse_tokens(x) is None and refuse_types(x, None) is None and refuse_layout(x, None) is None
    assert "1 to 8 tokens, not 9" in refuse_tokens(torch.zeros(9, 64))
    assert "1 to 8 tokens, not 0" in refuse_tokens(x[:0])
    assert "bf16, not torch.float32" in refuse_types(x, x.float())
    assert refuse_types(x.float(), wanted=torch.float32) is None
    assert "int64, not torch.bfloat16" in refuse_types(x.long(), x, wanted=torch.int64)
    assert "contiguous" in refuse_strides(x.T) and "contiguous" in refuse_layout(x.T)
    assert "multiple of 16 bytes" in refuse_layout(torch.zeros(65, dtype=torch.bfloat16)[1:])
    assert refuse_here(x, None) is None  # a CPU has no limits to exceed

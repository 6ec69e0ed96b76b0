"""Column order of products: equal to a loop over lanes and nibbles, and invertible."""

import itertools

import pytest
import torch

from firesteel.formats import feed


def place(stored, t, p, o, n):
    return 16 * n + 4 * t + 2 * p + o if stored == "mxfp8" else 16 * n + 8 * o + 2 * t + p


@pytest.mark.parametrize("stored", ["bf16", "mxfp8"])
def test_each_column_moves_to_where_its_lane_reads_it(stored):
    x = torch.arange(3 * 64).view(3, 64)
    fed = feed.pack(x, stored)
    for row, group in itertools.product(range(3), range(2)):
        for t, p, o, n in itertools.product(range(4), range(2), range(2), range(2)):
            column = 8 * t + 4 * p + 2 * o + n
            assert fed[row, 32 * group + place(stored, t, p, o, n)] == x[row, 32 * group + column]


def test_mxfp4_keeps_its_order():
    codes = torch.arange(48, dtype=torch.uint8)
    assert feed.pack(codes, "mxfp4") is codes and feed.unpack(codes, "mxfp4") is codes


@pytest.mark.parametrize("stored", ["bf16", "mxfp8", "mxfp4"])
@pytest.mark.parametrize("shape", [(96,), (5, 2880), (2, 3, 64), (0, 96)])
def test_round_trip_is_exact(stored, shape):
    bits = torch.randint(-(2**15), 2**15, shape, dtype=torch.int16, generator=torch.Generator().manual_seed(1))
    x = bits.view(torch.bfloat16)  # NaN included
    fed = feed.pack(x, stored)
    assert fed.shape == x.shape and torch.equal(feed.unpack(fed, stored).view(torch.int16), bits)
    assert stored == "mxfp4" or not bits.numel() or not torch.equal(fed.view(torch.int16), bits)


def test_partial_groups_are_refused():
    for change in (feed.pack, feed.unpack):
        with pytest.raises(ValueError, match="K = 48 is not a multiple of the group size 32"):
            change(torch.zeros(2, 48), "bf16")

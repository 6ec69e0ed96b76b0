"""Child of test_attention_splits.py, interpreted: python attention_split_padding.py SAMPLES.pt."""

import sys
from dataclasses import replace

import torch

from firesteel.kernels.op.needs import interpreting
from firesteel.kernels.ops import attention_fixed
from firesteel.kernels.ops.attention_tiles import cut_invariant, find_tiles

assert interpreting()
empty = torch.empty


def spoilt(*sizes, **options):
    made = empty(*sizes, **options)
    return made.fill_(torch.nan if made.is_floating_point() else 3)


torch.empty = spoilt
for sample in torch.load(sys.argv[1], weights_only=False):
    (operands,) = sample.clone()
    count = int(operands.query_starts[-1])
    shapes, tiles = find_tiles(cut_invariant, operands)
    results = [
        attention_fixed.launch_splits(operands, shapes, replace(tiles, splits=programs)) for programs in (1, 2)
    ]
    assert torch.equal(*results)
    assert (results[0][count:] == 0).all() and (results[0][:count] != 0).any()

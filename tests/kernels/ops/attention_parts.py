"""Child of test_attention.py, interpreted: python attention_parts.py SAMPLES.pt SPLITS... splits keys."""

import sys

import torch

from firesteel.kernels.op.needs import interpreting
from firesteel.kernels.op.tolerance import assert_close, fp32
from firesteel.kernels.ops.attention import attention, launch
from firesteel.kernels.ops.attention_tiles import Tiles

assert interpreting()
(sample,) = torch.load(sys.argv[1], weights_only=False)
(operands,) = sample.clone()
tolerance = fp32(worst=3e-6, rms=1e-6, why="the order of sums")
expected = attention.reference(operands)
operands.page_table[operands.page_table < 0] = (
    1 << 40
)  # after the last page: kernels never read it, the reference reads and drops it
whole = launch(lambda shapes: Tiles(1, 16, 64), operands)
assert_close(actual=whole, expected=expected, tolerance=tolerance)
for number in map(int, sys.argv[2:]):
    y = launch(lambda shapes, splits=number: Tiles(1, 16, 64, splits), operands)
    assert_close(actual=y, expected=whole, tolerance=tolerance)

"""Child of test_launch.py, interpreted: python mixed_parts.py SAMPLES.pt SLOTS:KEYS..."""

import runpy
import sys
from pathlib import Path

import torch

from firesteel.kernels.op.needs import interpreting
from firesteel.kernels.op.tolerance import assert_close, fp32
from firesteel.kernels.ops.attention import attention, launch
from firesteel.kernels.ops.attention_tiles import Shapes, Tiles
from firesteel.kernels.ops.mixed.cut import MixedTiles, cut_whole
from firesteel.kernels.ops.mixed.launch import attend_mixed

SINGLE = Tiles(4, 8, 64)


def cut_single(shapes: Shapes) -> Tiles:
    return SINGLE


list_splits = runpy.run_path(str(Path(__file__).with_name("expected_plan.py")))["list_splits"]
assert interpreting()
tolerance = fp32(worst=3e-6, rms=1e-6, why="the order of sums")
for sample in torch.load(sys.argv[1], weights_only=False):
    (operands,) = sample.clone()
    expected = attention.reference(operands)
    operands.page_table[operands.page_table < 0] = 1 << 40  # after a request's last page: kernels never read it
    whole = launch(cut_whole, operands)
    assert_close(actual=whole, expected=expected, tolerance=tolerance)
    single = launch(cut_single, operands)
    starts, lens = operands.query_starts.tolist(), operands.kv_lens.tolist()
    for words in sys.argv[2:]:
        slots, keys = map(int, words.split(":"))
        cut = MixedTiles(SINGLE, slots, wanted=1, least_keys=keys, most_keys=keys)
        y = attend_mixed(operands, cut)
        assert_close(actual=y, expected=expected, tolerance=tolerance)
        splits = list_splits(starts, lens, cut)
        print(words, splits)
        for request, count in enumerate(splits):
            rows = slice(starts[request], starts[request + 1])
            if count == 1:
                assert torch.equal(y[rows], single[rows]), f"request {request} has other bits with {words}"

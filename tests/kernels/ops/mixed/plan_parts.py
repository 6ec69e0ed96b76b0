"""Child of test_launch.py, interpreted: python plan_parts.py SAMPLES.pt NUMBER compares NUMBER random plans."""

import random
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import torch

from firesteel.kernels.op.needs import interpreting
from firesteel.kernels.ops.attention_tiles import Shapes, Tiles
from firesteel.kernels.ops.mixed.cut import cut_mixed
from firesteel.kernels.ops.mixed.launch import plan_work

list_work = runpy.run_path(str(Path(__file__).with_name("expected_plan.py")))["list_work"]
assert interpreting()
((operands,),) = (sample.clone() for sample in torch.load(sys.argv[1], weights_only=False))
rng = random.Random(1)
kinds = set()
for _ in range(int(sys.argv[2])):
    longest = rng.choice((100, 3000, 131072))
    queries = [rng.choice((0, 1, 1, 1, 1, 1, 1, 7, 20, 128, 129)) for _ in range(rng.choice((1, 9, 127, 300)))]
    lens = [count + rng.randrange(longest) if count else rng.choice((0, 50)) for count in queries]
    starts = [sum(queries[:request]) for request in range(len(queries) + 1)]
    shapes = Shapes(
        num_queries=starts[-1] + rng.choice((0, 1, 100)) or 1,
        num_requests=len(lens),
        heads=64,
        kv_heads=8,
        dim=64,
        element_bytes=2,
        longest=max(lens) + 1,
        window=None,
        num_sms=132,
    )
    cut = cut_mixed(shapes)
    if rng.random() < 0.5:
        cut = replace(cut, base=Tiles(4, 8, 64), slots=rng.choice((2, 50, 300)), wanted=rng.choice((1, 33)))
    given = replace(operands, query_starts=torch.tensor(starts), kv_lens=torch.tensor(lens))
    num_work = cut.count_work(shapes)
    work = plan_work(given, cut, num_work).T.tolist()
    expected = list_work(starts, lens, cut, num_work)
    assert len(work) == len(expected) == num_work, "there are programs enough"
    for planned, wanted in zip(work, expected, strict=True):
        assert planned[:4] == list(wanted[:4]), (planned, wanted)
        if wanted[3] > 1:
            assert planned[4] == wanted[4] and wanted[4] + wanted[3] <= cut.slots
    padding = sum(cut.base.queries for request, *_ in work if request == len(lens))
    assert padding >= shapes.num_queries - starts[-1]
    most = max(splits for _, _, _, splits, _ in expected)
    kinds.add((most > 1, len(lens) > 128, padding > 0))
print(kinds)

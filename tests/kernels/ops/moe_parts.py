"""Child of test_moe_matmul.py, interpreted or on a GPU: python moe_parts.py SAMPLES.pt CHECK..."""

import sys

import torch
import triton
import triton.language as tl

from firesteel.formats import feed, mxfp4
from firesteel.kernels.op.needs import interpreting
from firesteel.kernels.op.op import Implementation, anywhere
from firesteel.kernels.operands.fed import Fed, store
from firesteel.kernels.ops.moe_matmul import moe_matmul
from firesteel.kernels.proof.verify import check
from firesteel.kernels.triton import moe_matmul as device
from firesteel.kernels.triton import mxfp
from firesteel.kernels.triton.moe_sort import max_tiles, sort_pairs

PLACE = torch.device("cpu" if interpreting() else "cuda")


def check_sort():
    generator = torch.Generator().manual_seed(1)
    for tokens, active, experts, rows in (
        (1, 1, 1, 16),
        (1, 4, 128, 16),
        (3, 2, 5, 32),
        (64, 4, 128, 16),
        (70, 4, 5, 64),
        (150, 4, 128, 128),
    ):
        spread = torch.rand(tokens, experts, generator=generator).topk(active)[1]
        for ids in (spread, torch.full((tokens, active), experts - 1)):
            check_sorted(ids.to(PLACE), experts, rows)
            ids[tokens // 2 :] = -1
            check_sorted(ids.to(PLACE), experts, rows)


def check_sorted(ids, experts, rows):
    sorted_pairs, flat = sort_pairs(ids, experts, rows), ids.flatten()
    count = int((flat >= 0).sum())
    assert torch.equal(sorted_pairs.order[:count], flat.argsort(stable=True)[len(flat) - count :].int())
    counts = flat[flat >= 0].bincount(minlength=experts)
    assert torch.equal(sorted_pairs.ends, counts.cumsum(0).int())
    ends = sorted_pairs.ends.tolist()
    expected = [(e, first) for e in range(experts) for first in range(ends[e] - int(counts[e]), ends[e], rows)]
    tiles = list(zip(sorted_pairs.tile_experts.tolist(), sorted_pairs.tile_firsts.tolist(), strict=True))
    assert len(tiles) == max_tiles(flat.numel(), experts, rows) >= len(expected)
    assert tiles[: len(expected)] == expected
    assert all(expert == -1 for expert, _ in tiles[len(expected) :])


@triton.jit
def widen(codes, scales, out, N: tl.constexpr, K: tl.constexpr):
    """Widens 128 of the K columns per CTA."""
    rows = tl.program_id(0) * N + tl.arange(0, N)
    words = codes.to(tl.pointer_type(tl.uint32)) + tl.program_id(1) * 16 + rows[:, None] * (K // 8)
    four_scales = scales.to(tl.pointer_type(tl.uint32)) + tl.program_id(1) + rows * (K // 128)
    factors = mxfp.e8m0_to_factors(tl.load(four_scales), 4)
    wide = mxfp.mxfp4_to_bf16(tl.load(words + tl.arange(0, 16)[None, :]), factors)
    tl.store(out + rows[:, None] * K + tl.program_id(1) * 128 + tl.arange(0, 128)[None, :], wide)


def check_widen():
    """Checks all bytes under all scales: exact from 2^-100 to 2^33, not finite above."""
    codes = torch.arange(256, dtype=torch.uint8, device=PLACE).repeat(256, 1)
    scales = torch.arange(256, dtype=torch.uint8, device=PLACE)[:, None].repeat(1, 16)
    out = torch.empty(256, 512, dtype=torch.bfloat16, device=PLACE)
    widen[8, 4](codes, scales, out, N=32, K=512)
    expected = feed.pack(mxfp4.dequantize(codes, scales) * 2.0**-mxfp.WIDENED_SHIFT.value, "bf16")
    assert torch.equal(out[27:161].float(), expected[27:161])
    assert not out[161:].isfinite().any()


def check_quantize():
    generator = torch.Generator().manual_seed(2)
    powers = torch.randint(-100, 100, (7, 3), generator=generator).repeat_interleave(32, 1)
    x = torch.randn(7, 96, generator=generator) * 2.0**powers
    x[0], x[1, :32], x[2, 5] = 0, 1e-37, -0.0
    x[3], x[4], x[5] = torch.arange(96) / 32 - 1, 3e38, torch.arange(96) / 7  # ties, the largest, saturation
    x = x.bfloat16().to(PLACE)
    sizes = {"K": 96, "ROWS": 4, "COLUMNS": 64}
    for name, native in (("bf16", False), ("mxfp8", False), ("mxfp8", True), ("mxfp4", False), ("mxfp4", True)):
        expected, actual = store(x, name, native), Fed.empty(x.shape, name, native, PLACE)
        mxfp.store_rows[2, 2](x, actual.values, actual.scales, 7, **sizes, FORMAT=name, NATIVE=native)
        assert torch.equal(actual.values, expected.values), (name, native)
        assert not native or torch.equal(actual.scales, expected.scales), name
    values = torch.empty_like(x)
    x[0, 0], x[1, 40] = float("inf"), float("nan")
    mxfp.store_rows[2, 2](x, values, None, 7, **sizes, FORMAT="mxfp8", NATIVE=False)
    assert values[0, :32].isnan().all() and values[1, 32:64].isnan().all() and values[1, :32].isfinite().all()


def check_native():
    samples = torch.load(sys.argv[1], weights_only=False)
    tiles = (device.gemv_tiles(6), device.gemm_tiles(2, (12, 1), native=True))
    for sample, pair in zip(samples, tiles, strict=True):

        def run(operands, tiles=pair):
            fed = store(operands.x, operands.activation, native=True)
            routed = (operands.ids, operands.weights, operands.experts)
            return device.run(fed, *routed, operands.limit, tiles)

        failure = check(moe_matmul, Implementation("native", run, anywhere), sample)
        assert failure is None, f"{sample.label}: {failure}"


torch.set_num_threads(1)
for check_name in sys.argv[2:]:
    globals()[f"check_{check_name}"]()

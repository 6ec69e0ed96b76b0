"""attention=triton:invariant: splits at fixed positions, whose states are folded in one order."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from firesteel.kernels.ops.attention import attention
from firesteel.kernels.ops.attention_tiles import MOST_PART_BYTES, Tiles, count_splits, cut_invariant
from firesteel.kernels.proof.prove import architecture, compile_code, prove_code
from tests.kernels.ops.test_attention import FP8, REAL, SINKS, meta, pad, sample

PARTS = Path(__file__).with_name("attention_split_parts.py")
SMALL = ("64", "2")  # splits of 64, 64, 64, 64, 128, 128, 256, ... keys


def test_rows_have_the_same_bits_in_any_number_of_programs_chunks_and_pages(run_interpreted):
    edges = [(1, 64), (1, 65), (2, 257), (1, 384)]
    samples = [
        sample("edges", edges, heads=2, sinks=SINKS[:2]),
        sample("order of parts, unrounded", [(1, 320), (1, 200)], heads=2, dtype=torch.float32),
        sample("window", [(6, 140), (1, 129), (5, 5)], window=20, page_size=64, heads=2, sinks=SINKS[:2]),
    ]
    run_interpreted(PARTS, *SMALL, samples=samples)


@pytest.mark.slow
def test_rows_have_the_same_bits_in_long_chunks_with_other_types_and_heads(run_interpreted):
    lens = [(3, 130), (1, 300)]
    run_interpreted(
        PARTS,
        *SMALL,
        samples=[
            sample("a chunk over edges", [(70, 300), (3, 30)], page_size=64),
            sample("a long window", [(30, 280), (1, 130)], window=20, page_size=64, sinks=SINKS),
            sample("window of two splits", [(12, 400), (1, 70)], window=128, page_size=32),
            sample("fp8 pages", lens, kv_dtype=FP8, sinks=SINKS, scales=(0.7, 5.0)),
            sample("fp32", lens, dtype=torch.float32, heads=4, kv_heads=2),
            sample("5 query heads", lens, heads=5, sinks=SINKS[:5], page_size=128),
        ],
    )


@pytest.mark.slow
def test_rows_have_the_same_bits_with_splits_as_shipped(run_interpreted):
    lens = [(1, 255), (1, 256), (1, 257), (2, 513), (40, 800)]
    run_interpreted(PARTS, "256", "16", samples=[sample("", lens, sinks=SINKS), sample("", lens, page_size=128)])


@pytest.mark.slow
def test_rows_have_the_same_bits_where_splits_double(run_interpreted):
    lens = [(1, 8191), (3, 8194), (1, 8705)]
    run_interpreted(PARTS, "256", "16", samples=[sample("", lens, page_size=64, heads=2, kv_heads=1)])


def test_parts_of_padding_are_zero(run_interpreted):
    program = PARTS.with_name("attention_split_padding.py")
    chunk = sample("", [(1, 300), (3, 150)], page_size=64, heads=2, sinks=SINKS[:2])
    none_left = sample("", [(2, 90), (0, 1), (0, 1)], heads=2, sinks=SINKS[:2])
    run_interpreted(program, samples=[pad(chunk, 6), pad(none_left, 40)])


def test_splits_grow_so_that_long_texts_have_few():
    assert [count_splits(keys) for keys in (1, 256, 257, 8192, 8193, 16384, 131072)] == [1, 1, 2, 32, 33, 48, 96]


def test_programs_share_keys_where_there_are_few_and_parts_stay_small():
    alone = replace(REAL, num_queries=1, num_requests=1)
    assert cut_invariant(alone) == Tiles(8, 8, 64, splits=32)
    assert cut_invariant(replace(alone, longest=131072)).splits == 33
    assert cut_invariant(replace(alone, longest=256)).splits == 1
    assert cut_invariant(replace(alone, window=128)).splits == 1
    assert cut_invariant(replace(REAL, longest=131072)).splits == 32  # one long request must not outlast the others
    assert cut_invariant(replace(REAL, num_queries=8192, num_requests=1)).splits == 1
    assert cut_invariant(replace(REAL, num_queries=512, num_requests=1, longest=131072)).splits == 1
    tiles = {replace(cut_invariant(replace(alone, num_queries=count)), splits=1) for count in (1, 7, 100, 9000)}
    assert tiles == {Tiles(8, 8, 64)}, "all calls must be cut into the same tiles"
    for longest in (4096, 8192, 131072):
        for queries in range(1, 300):
            shapes = replace(REAL, num_queries=queries, num_requests=queries, longest=longest)
            part_bytes = queries * 64 * count_splits(longest) * 66 * 4
            assert (cut_invariant(shapes).splits > 1) <= (part_bytes <= MOST_PART_BYTES)


def list_layouts(code):
    """Lists the layouts of matrix products, and the products and reductions with the layouts of their results."""
    found = re.findall(r"#mma\d* = (#ttg\.nvidia_mma<[^\n]*>)", code)
    names = dict(re.findall(r"(#\w+) = (#ttg\.[^\n]*)", code))
    products = re.findall(r"(?:warp_group_dot|tt\.dot) .*-> tensor<([0-9x]+f32), (#mma\d*)>", code)
    reductions = re.findall(r'"tt\.reduce".*?\}\) : \(tensor<([0-9x]+f32), (#\w+)>\)', code, flags=re.DOTALL)
    return (
        sorted(set(found)),
        sorted({(shape, names[layout]) for shape, layout in products}),
        sorted({(shape, names[layout]) for shape, layout in reductions}),
    )


@pytest.mark.parametrize("target", ["sm_90a", "sm_121a"])
def test_programs_that_fold_and_that_store_compute_a_tile_by_the_same_instructions(target):
    """Sums inside a matrix product or a row follow from the layouts; products are never added without `fma`."""
    codes = {code.variant: code for code in attention.make_device_code((9, 0))}
    seen = {}
    for variant in ("parts", "whole", "window"):
        code = codes[f"triton:invariant {variant}"]
        proof = prove_code("attention", code, target)
        assert proof.verdict == "bf16" and proof.spills == 0 and proof.fits
        seen[variant] = list_layouts(compile_code(code, architecture(target)).asm["ttgir"])
    layouts, products, reductions = seen["whole"]
    assert len(layouts) == 1 and [shape for shape, _ in products] == ["64x64xf32"]
    assert [shape for shape, _ in reductions] == ["64x64xf32"]
    assert seen["parts"] == seen["window"] == seen["whole"]


def test_more_tiles_than_a_grid_has_rows_are_refused():
    operands = meta(sample("", [(1, 40)], heads=64, kv_heads=8))
    takes = attention.implementations["triton:invariant"].accepts

    def with_queries(count):
        q = torch.empty(1, 64, 64, dtype=torch.bfloat16, device="meta").expand(count, -1, -1)
        return replace(operands, q=q)

    assert takes(with_queries(256_000)) is None
    assert takes(with_queries(65_535 * 8 - 7)) is None
    assert takes(with_queries(65_535 * 8 + 1)) == "takes up to 524280 queries per call, not 524281"

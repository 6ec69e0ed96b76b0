"""The ring that streams weights: best measured shapes, smaller GPUs, and refusals."""

import pytest
import torch

from firesteel.errors import KernelError
from firesteel.kernels.operands.weights import Mxfp4Weight
from firesteel.kernels.stream.ring import (
    Stream,
    align,
    pad,
    plan_stream,
    refuse_columns,
    refuse_weight,
    round_tokens,
)

LARGE, SMALL = 232_448, 101_376


def plan(is_fp4, columns, tokens=1, stages=4, limit=LARGE):
    shared = lambda stream: stream.ring_bytes + stream.x_bytes  # noqa: E731
    return plan_stream(is_fp4, columns, tokens, stages=stages, shared=shared, limit=limit)


@pytest.mark.parametrize(
    ("is_fp4", "columns", "chunks", "warps", "steps", "threads"),
    [
        (False, 2880, 4, 15, 3, 576),
        (True, 2880, 1, 15, 3, 544),
        (False, 4096, 8, 16, 2, 608),
        (True, 4096, 1, 16, 4, 608),
        (False, 256, 1, 16, 1, 608),
        (True, 256, 1, 4, 1, 224),
        (True, 192, 1, 3, 1, 160),
        (True, 512, 1, 8, 1, 352),
    ],
)
def test_rows_are_divided_evenly_among_warps(is_fp4, columns, chunks, warps, steps, threads):
    ring = plan(is_fp4, columns)
    assert (ring.chunks, ring.warps, ring.steps_each, ring.threads) == (chunks, warps, steps, threads)
    assert ring.row_bytes == ring.chunks * ring.warps * ring.steps_each * 32


def test_tokens_are_rounded_up_to_compiled_sizes():
    assert [round_tokens(count) for count in range(1, 9)] == [1, 2, 4, 4, 8, 8, 8, 8]
    assert plan(True, 2880, tokens=3).tokens == 4


def test_rows_in_shared_memory_use_different_banks():
    for num_bytes in (32, 128, 1440, 2048, 5760):
        padded = pad(num_bytes)
        assert padded >= num_bytes and padded % 16 == 0
        assert len({row * padded // 4 % 32 // 8 for row in range(4)}) == 4


def test_a_smaller_gpu_gets_fewer_stages():
    assert plan(True, 2880, limit=LARGE).stages == 4
    small = plan(True, 2880, limit=SMALL)
    assert small.stages == 3 and small.ring_bytes + small.x_bytes <= SMALL
    assert plan(True, 2880, limit=1000).stages == 1  # it does not fit, which the launch reports


def test_packed_weights_hold_fewer_tokens_at_a_time_if_that_gives_a_second_stage():
    shared = lambda stream: stream.ring_bytes + stream.x_bytes  # noqa: E731
    plans = {
        limit: plan_stream(True, 4096, 8, stages=4, shared=shared, limit=limit, fewest_held=1)
        for limit in (LARGE, SMALL)
    }
    assert [(stream.num_held, stream.stages) for stream in plans.values()] == [(8, 3), (1, 2)]
    assert plans[SMALL].defines["NUM_HELD"] == 1 and plans[SMALL].x_bytes == align(pad(2 * 4096))


def test_rows_of_bf16_are_cut_finer_if_that_gives_a_second_stage():
    large, small = (plan(False, 4096, tokens=8, limit=limit) for limit in (LARGE, SMALL))
    assert (large.chunks, large.warps) == (8, 16) and large.stages > 2
    assert (small.chunks, small.warps, small.stages) == (16, 16, 2)


@pytest.mark.parametrize(
    ("is_fp4", "columns", "why"),
    [
        (True, 96, "multiple of 64 values, not 96"),
        (False, 24, "multiple of 16 values, not 24"),
        (True, 64 * 67, "shares rows of 4288 values among 1 warps: too many"),
    ],
)
def test_rows_that_cannot_be_divided_are_refused_with_the_reason(is_fp4, columns, why):
    assert why in refuse_columns(is_fp4, columns)
    with pytest.raises(KernelError, match=why):
        plan(is_fp4, columns)


def test_weights_must_be_contiguous_whole_strips():
    assert refuse_weight(torch.zeros(48, 64)) is None
    assert "by 16 rows, not 40" in refuse_weight(torch.zeros(40, 64))
    assert "contiguous" in refuse_weight(torch.zeros(64, 48).T)
    codes = torch.zeros(32, 32, dtype=torch.uint8)
    assert refuse_weight(Mxfp4Weight(codes=codes, scales=codes[:, :2].contiguous())) is None
    assert "contiguous" in refuse_weight(Mxfp4Weight(codes=codes, scales=codes[:, :2]))


def test_defines_hold_the_chosen_sizes():
    stream = Stream(is_fp4=True, columns=2880, tokens=2, chunks=1, warps=15, stages=4)
    expected = {"IS_FP4": True, "MAX_TOKENS": 2, "NUM_CHUNKS": 1, "NUM_WARPS": 15, "NUM_STAGES": 4, "NUM_HELD": 2}
    assert stream.defines == expected and str(stream) == "15 warps 4 stages 2 tokens"

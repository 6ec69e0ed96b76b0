"""draw gives the reference's tokens for any logits: in Triton's interpreter, and on a GPU at the real size."""

from dataclasses import replace

import pytest
import torch

from firesteel.kernels.noise import stream_key, token_steps
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.ops.draw import DrawOperands, draw

INF, NAN = float("inf"), float("nan")


def make_args(logits, temperatures, *, seed=5):
    keys = [stream_key(seed, row) for row in range(len(logits))]
    size, device = logits.shape[1], logits.device
    operands = DrawOperands(
        logits=logits,
        best=logits.amax(-1),
        temperatures=torch.tensor(temperatures, device=device),
        keys=torch.tensor(keys, dtype=torch.int64, device=device),
        steps=token_steps(size, device),
    )
    return (operands,)


def normal(rows, size, device="cpu"):
    return 3 * torch.randn(rows, size, device=device, generator=torch.Generator(device).manual_seed(rows + size))


def test_interpreted_draws_are_the_references(interpret):
    samples = [
        Sample("one token", make_args(normal(2, 1), [1.0, 0.0])),
        Sample("a part and one", make_args(normal(3, 2049), [1.0, 0.0, 2.0])),
        Sample("many rows", make_args(normal(40, 300), [0.5 + row % 3 for row in range(40)])),
        Sample("a slice", make_args(normal(6, 500)[::2, :400], [1.0, 1e-30, 1e30])),
        Sample("no rows", make_args(normal(0, 50), [])),
    ]
    assert len(interpret(draw, samples)) == len(samples)


def test_interpreted_draws_stay_in_the_vocabulary(call_interpreted):
    logits = normal(4, 70)
    logits[0], logits[1, 3], logits[2] = -INF, NAN, NAN
    (token_ids,) = call_interpreted(draw, "triton", [Sample("NaN", make_args(logits, [1.0, 1.0, 0.0, 1.0]))])
    assert ((token_ids >= 0) & (token_ids < 70)).all()


def equals(device="cpu"):
    """Returns greedy rows with equal logits, within one part and across parts."""
    logits = torch.zeros(3, 6200, device=device)
    logits[0, [2040, 2041, 5000]], logits[1, [2047, 2048]], logits[2, [4100, 6199]] = 1.0, 1.0, 1.0
    return make_args(logits, [0.0, 0.0, 0.0])


@pytest.mark.gpu
def test_greedy_rows_take_the_lowest_of_equals_on_a_gpu():
    assert draw.implementations["triton"].function(*equals("cuda")).tolist() == [2040, 2047, 4100]


def test_greedy_rows_take_the_lowest_of_equals_within_and_across_parts(call_interpreted):
    """The interpreter always takes the lowest; only a GPU shows whether the kernel does."""
    args = equals()
    assert draw.reference(*args).tolist() == [2040, 2047, 4100]
    (token_ids,) = call_interpreted(draw, "triton", [Sample("equals", args)])
    assert token_ids.tolist() == [2040, 2047, 4100]


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 8, 64])
def test_draws_of_a_real_vocabulary_are_the_references_on_a_gpu(rows):
    (first,) = make_args(normal(rows, 201_088, "cuda"), [1.0] * rows)
    differing = 0
    for seed in range(1024 // rows):
        keys = torch.tensor([stream_key(seed, row) for row in range(rows)], device="cuda")
        operands = replace(first, keys=keys)
        differing += int((draw.implementations["triton"].function(operands) != draw.reference(operands)).sum())
    assert differing <= 1  # a near tie

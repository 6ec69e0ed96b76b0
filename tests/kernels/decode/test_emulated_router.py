"""decode_router's kernel on an emulated GPU."""

import pytest
import torch

from firesteel.kernels.decode.router import DecodeRouterOperands, decode_router
from firesteel.kernels.stream.plan import Machine
from firesteel.kernels.stream.shapes import Draw

ANY = Machine(4, 232_448)


def make_operands(tokens, hidden=336, experts=12):
    """Builds operands with rows of 42 times eight values: the second round of a warp is partial."""
    draw = Draw(torch.device("cpu"))
    return DecodeRouterOperands(
        r=draw.normal(tokens, hidden),
        norm=draw.normal(hidden),
        eps=1e-5,
        weight=draw.weight(experts, hidden),
        bias=draw.normal(experts),
    )


@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 8])
def test_logits_of_every_number_of_tokens(tokens, hold_emulated):
    hold_emulated(decode_router, ANY, make_operands(tokens))


def test_only_weights_are_read_before_the_inputs_are_ready(hold_early):
    hold_early(decode_router, ANY, ("r",), make_operands(3))


def test_nan_reaches_all_logits_of_its_token(hold_emulated):
    operands = make_operands(3)
    operands.r[1, 335] = float("nan")
    hold_emulated(decode_router, ANY, operands)
    assert decode_router.reference(operands).isnan().all(1).tolist() == [False, True, False]


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [16, 256, 1344, 2880])
def test_rows_of_other_lengths(hidden, hold_emulated):
    hold_emulated(decode_router, ANY, make_operands(3, hidden, 8))

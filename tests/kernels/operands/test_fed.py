"""Stored activations: their contents in every form, and those that a matmul refuses."""

from dataclasses import replace

import pytest
import torch

from firesteel.formats import feed, mxfp4, mxfp8
from firesteel.kernels.operands.activation import ACTIVATIONS
from firesteel.kernels.operands.fed import Fed, refuse_activation, refuse_fed, store

X = torch.randn(3, 96, generator=torch.Generator().manual_seed(1)).bfloat16()
FORMS = [("bf16", False), ("mxfp8", False), ("mxfp8", True), ("mxfp4", False), ("mxfp4", True)]
KINDS = {"mxfp8": mxfp8, "mxfp4": mxfp4}


@pytest.mark.parametrize(("activation", "native"), FORMS)
def test_stored_rows_are_the_rounded_ones_in_the_order_of_the_product(activation, native):
    fed = store(X, activation, native)
    values = feed.unpack(fed.values, fed.stored)
    rounded = X if activation == "bf16" else KINDS[activation].dequantize(*KINDS[activation].quantize(X))
    if native:
        values = KINDS[activation].dequantize(values, fed.scales)
    assert torch.equal(values.float(), rounded.float())
    assert (fed.activation, fed.shape) == (activation, (3, 96)) and (fed.scales is not None) == native
    assert activation == "bf16" or not torch.equal(values.float(), X.float())


@pytest.mark.parametrize(("activation", "native"), FORMS)
def test_empty_storage_has_the_stored_form(activation, native):
    room, fed = Fed.empty((3, 96), activation, native, torch.device("cpu")), store(X, activation, native)
    assert (room.shape, room.stored, room.nbytes) == (fed.shape, fed.stored, fed.nbytes)
    assert (room.values.dtype, room.values.shape) == (fed.values.dtype, fed.values.shape)
    assert fed.nbytes == 3 * {"bf16": 192, "mxfp8": 99, "mxfp4": 51}[fed.stored]


def test_rows_of_another_form_or_shape_are_refused_by_name():
    assert refuse_fed(None, X, "mxfp8", True) is None
    for activation, native in FORMS:
        fed = store(X, activation, native)
        taken = [form for form in FORMS if refuse_fed(fed, X, *form) is None]
        assert taken == [(activation, native)]
    fed = store(X, "mxfp8", False)
    assert refuse_fed(fed, X, "mxfp8", True) == (
        "wants 3 x 96 values rounded to mxfp8 and stored as mxfp8, "
        "but was given 3 x 96 values rounded to mxfp8 and stored as bf16"
    )
    assert "wants 2 x 96 values" in refuse_fed(fed, X[:2], "mxfp8", False)
    apart = replace(fed, values=fed.values.T.contiguous().T)
    assert refuse_fed(apart, X, "mxfp8", False) == "wants stored rows that are contiguous"


def test_unknown_activation_is_refused():
    assert [refuse_activation(activation) for activation in ACTIVATIONS] == [None] * 3
    assert refuse_activation("fp8") == "takes activations bf16, mxfp8, mxfp4, not 'fp8'"

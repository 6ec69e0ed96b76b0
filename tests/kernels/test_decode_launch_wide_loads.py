"""Packed rows read sixteen codes a lane give the same sums: for one token, two, and where an expert has fewer."""

import pytest

from firesteel.kernels import decode_experts, decode_launch
from firesteel.kernels.decode_launch import forget_plans
from tests.kernels.test_emulated_decode_experts import PAIRED, make_args


@pytest.fixture
def wide(monkeypatch):
    monkeypatch.setattr(decode_launch, "WIDE_LOADS", True)
    forget_plans()
    yield
    forget_plans()


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize(
    ("tokens", "way"), [(1, "cuda"), (1, "cuda:turns"), (2, "cuda"), (5, "cuda:even")], ids=str
)
def test_experts(tokens, way, hold_emulated):
    for routing in ("any", "the same"):
        hold_emulated(decode_experts, PAIRED, *make_args(tokens, routing), way=way)

"""Fixtures of op benchmarks."""

import pytest

from firesteel.kernels.op.op import anywhere
from firesteel.kernels.ops.route import route


@pytest.fixture
def single(monkeypatch):
    """single(accepts) adds an implementation "single" to route."""

    def add(accepts=None, function=route.reference):
        monkeypatch.setattr(route, "implementations", dict(route.implementations))
        route.implementation("single", needs=anywhere, accepts=accepts)(function)

    return add

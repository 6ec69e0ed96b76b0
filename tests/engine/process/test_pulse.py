"""A step that takes long is heard of while something is done in it."""

import time

import pytest
import torch

from firesteel.engine.process.pulse import beat_at_calls, beat_at_compiles
from firesteel.kernels.ledger import Ledger, Ran


@pytest.fixture
def compilation(monkeypatch):
    """Triton's settings of compilation, restored after the test."""
    knobs = pytest.importorskip("triton").knobs.compilation
    monkeypatch.setattr(knobs, "listener", None)
    return knobs


@pytest.fixture
def beats():
    return []


def wait_for(condition):
    deadline = time.monotonic() + 5
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert condition()


def test_called_ops_are_heard_of_and_idleness_is_not(beats):
    ledger = Ledger()
    end = beat_at_calls(ledger, lambda: beats.append(time.monotonic()), every_s=0.02)
    time.sleep(0.1)
    assert not beats
    for count in (1, 2):
        ledger.run(Ran("linear", "reference"), int)
        wait_for(lambda count=count: len(beats) == count)
    time.sleep(0.1)
    assert len(beats) == 2, "one for each time that something was called, not for the silence after it"
    end()


def test_nothing_is_heard_after_the_end(beats):
    ledger = Ledger()
    beat_at_calls(ledger, lambda: beats.append(1), every_s=0.02)()
    time.sleep(0.05)
    ledger.run(Ran("linear", "reference"), int)
    time.sleep(0.1)
    assert not beats


def test_each_kernel_that_is_compiled_is_heard_of(compilation, beats):
    beat_at_compiles(lambda: beats.append(1))
    compilation.listener(src=None, metadata={}, metadata_group={}, times=None, cache_hit=True)
    assert beats == [1]


@pytest.mark.gpu
@pytest.mark.usefixtures("compilation")
def test_kernel_is_heard_of_at_its_first_use_only(beats):
    import triton

    @triton.jit
    def idle(x):
        pass

    x = torch.zeros(1, device="cuda")
    beat_at_compiles(lambda: beats.append(1))
    for _ in range(2):
        idle[(1,)](x)
    assert beats == [1]

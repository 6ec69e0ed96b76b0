"""Calls in other processes: a call that ends its process is reported with the cause, the others give results."""

import multiprocessing
import os
import signal

import pytest

from firesteel.kernels.proof.isolate import Died, Worker, call_apart

ABORTED = Died("its process was ended by SIGABRT")


@pytest.fixture(autouse=True)
def quick_start(monkeypatch):
    """Forks processes from one that has imported torch; test_prove_all.py starts them as in production."""
    forked = multiprocessing.get_context("forkserver")
    forked.set_forkserver_preload(["firesteel.kernels.proof.isolate"])
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: forked)


@pytest.mark.parametrize("workers", [1, 2])
def test_call_that_aborts_does_not_affect_others(workers):
    numbers = [0, signal.SIGABRT, 0, 0]  # signal 0 does nothing
    assert list(call_apart(signal.raise_signal, numbers, workers)) == [None, ABORTED, None, None]


def test_nothing_to_call_starts_nothing():
    assert list(call_apart(os.abort, [], 4)) == []


def test_a_worker_is_one_process_until_it_dies_or_is_stopped():
    worker = Worker()
    first = worker.call(os.getpid)
    assert first != os.getpid() and worker.call(os.getpid) == first
    assert worker.call(os._exit, 3) == Died("its process ended with exit code 3")
    second = worker.call(os.getpid)
    worker.stop()
    worker.stop()
    third = worker.call(os.getpid)
    worker.stop()
    assert len({first, second, third}) == 3

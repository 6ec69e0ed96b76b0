"""Tasks of a background thread: in order, even after a failure, and without blocking the caller."""

import threading
from queue import SimpleQueue

import pytest

from firesteel.engine.process.worker import BackgroundWorker

PATIENCE_S = 10.0


def test_tasks_run_in_order_in_another_thread():
    done, threads = SimpleQueue(), []
    worker = BackgroundWorker()
    for number in range(20):
        worker.do(lambda: threads.append(threading.current_thread()), lambda number=number: done.put(number))
    assert [done.get(timeout=PATIENCE_S) for _ in range(20)] == list(range(20))
    assert len(set(threads)) == 1 and threads[0] is not threading.current_thread() and threads[0].daemon


def test_caller_does_not_wait():
    gate, done = threading.Event(), SimpleQueue()
    worker = BackgroundWorker()
    worker.do(lambda: gate.wait(PATIENCE_S), lambda: done.put("first"))
    worker.do(lambda: None, lambda: done.put("second"))
    assert done.empty()
    gate.set()
    assert [done.get(timeout=PATIENCE_S) for _ in range(2)] == ["first", "second"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_then_follows_a_failed_task_and_the_next_task_runs():
    done = SimpleQueue()
    worker = BackgroundWorker()
    worker.do(lambda: 1 / 0, lambda: done.put("failed"))
    assert done.get(timeout=PATIENCE_S) == "failed"
    worker._thread.join(PATIENCE_S)
    worker.do(lambda: None, lambda: done.put("done"))
    assert done.get(timeout=PATIENCE_S) == "done"

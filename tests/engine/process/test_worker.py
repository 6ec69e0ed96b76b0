"""Tasks of a background thread: in order, even after a failure, and without blocking the caller."""

import sys
import threading
from queue import SimpleQueue

from firesteel.engine.process.worker import BackgroundWorker

PATIENCE_S = 10.0


def test_tasks_run_in_order_in_another_thread():
    done, threads = SimpleQueue(), []
    worker = BackgroundWorker()
    for number in range(20):
        worker.do(lambda: threads.append(threading.current_thread()), lambda _, number=number: done.put(number))
    assert [done.get(timeout=PATIENCE_S) for _ in range(20)] == list(range(20))
    assert len(set(threads)) == 1 and threads[0] is not threading.current_thread() and threads[0].daemon


def test_caller_does_not_wait():
    gate, done = threading.Event(), SimpleQueue()
    worker = BackgroundWorker()
    worker.do(lambda: gate.wait(PATIENCE_S), lambda _: done.put("first"))
    worker.do(lambda: None, lambda _: done.put("second"))
    assert done.empty()
    gate.set()
    assert [done.get(timeout=PATIENCE_S) for _ in range(2)] == ["first", "second"]


def test_outcome_of_each_task_is_passed_on():
    """A task that failed ended the thread, and those queued behind it waited for another task."""
    outcomes = SimpleQueue()
    worker = BackgroundWorker()
    for task in (lambda: 1 / 0, lambda: sys.exit(1), lambda: "done"):
        worker.do(task, outcomes.put)
    failed, left, done = (outcomes.get(timeout=PATIENCE_S) for _ in range(3))
    assert isinstance(failed.exception(), ZeroDivisionError) and isinstance(left.exception(), SystemExit)
    assert done.result() == "done"

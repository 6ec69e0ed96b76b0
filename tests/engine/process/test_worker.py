"""Work in a thread of its own: in order, whatever fails, and without keeping anyone waiting."""

import threading
from queue import SimpleQueue

import pytest

from firesteel.engine.process.worker import Aside

PATIENCE_S = 10.0


def test_work_is_done_in_order_in_another_thread_and_then_told():
    told, threads = SimpleQueue(), []
    aside = Aside()
    for number in range(20):
        aside.do(lambda: threads.append(threading.current_thread()), lambda number=number: told.put(number))
    assert [told.get(timeout=PATIENCE_S) for _ in range(20)] == list(range(20))
    assert len(set(threads)) == 1 and threads[0] is not threading.current_thread() and threads[0].daemon


def test_nobody_waits_for_it():
    gate, told = threading.Event(), SimpleQueue()
    aside = Aside()
    aside.do(lambda: gate.wait(PATIENCE_S), lambda: told.put("first"))
    aside.do(lambda: None, lambda: told.put("second"))
    assert told.empty()
    gate.set()
    assert [told.get(timeout=PATIENCE_S) for _ in range(2)] == ["first", "second"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_work_that_fails_is_told_too_and_the_next_is_done():
    told = SimpleQueue()
    aside = Aside()
    aside.do(lambda: 1 / 0, lambda: told.put("failed"))
    assert told.get(timeout=PATIENCE_S) == "failed"
    aside._thread.join(PATIENCE_S)
    aside.do(lambda: None, lambda: told.put("done"))
    assert told.get(timeout=PATIENCE_S) == "done"

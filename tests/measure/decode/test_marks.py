"""Times between marks, on a fake clock."""

from firesteel.device import find_device
from firesteel.measure.decode import marks as step_marks
from firesteel.measure.decode.marks import StepMarks


def test_steps_last_from_end_to_end_and_gaps_from_end_to_begin(monkeypatch):
    ticks = iter([1.0, 1.5, 1.75, 2.5, 2.5, 4.5])
    monkeypatch.setattr(step_marks.time, "perf_counter", lambda: next(ticks))
    marks = StepMarks(find_device("cpu"))
    for _ in range(3):
        marks.before()
        marks.after()
    times = marks.read()
    assert times.steps_ms == (1000.0, 2000.0) and times.gaps_ms == (250.0, 0.0)
    assert times.idle_share == 250 / 3000

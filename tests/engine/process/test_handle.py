"""The parent's handle of a process: how long it may load in silence, how its end is described, and its log."""

import asyncio
import io
import time

import pytest

from firesteel.config import resolve
from firesteel.engine.process.handle import (
    LINE_BYTES,
    LOG_LINES,
    EngineProcess,
    LogTail,
    describe_exit,
    describe_plan,
    error_of,
)
from firesteel.engine.process.messages import Loading, Refused, Rejected, Start, pack
from firesteel.errors import EngineDied, HostMemoryLow, KernelError, RequestError, UserError

SLOW = f"""
for _ in range(8):
    time.sleep(0.3)
    channel.sendall({pack(Loading(done_bytes=1, all_bytes=2))})
say_ready()
time.sleep(60)
"""
LATE = """
signal.signal(signal.SIGUSR1, say_ready)
while True:
    time.sleep(60)
"""


def load(folder, engine_hang_s, within_s=20):
    """Returns the Ready message of a process."""
    start = Start(directory=str(folder), config=resolve({"device": "cpu", "engine_hang_s": engine_hang_s}).config)

    async def wait():
        process = EngineProcess()
        try:
            return await asyncio.wait_for(process.load(start), within_s)
        finally:
            await process.reap()

    return asyncio.run(wait())


@pytest.mark.usefixtures("none_left")
def test_loading_may_take_long_while_messages_arrive(stand_in, tmp_path):
    """2.4 s in total, 0.3 s between two messages, and 1.5 s allowed."""
    ready = stand_in(SLOW)
    assert load(tmp_path, 0.3) == ready


@pytest.mark.usefixtures("none_left")
def test_engine_that_hung_while_loading_is_not_ready(stand_in, tmp_path):
    """It sends Ready when asked for its stacks."""
    stand_in(LATE)
    with pytest.raises(EngineDied, match=r"it hung while loading: no message for 2 s \(5 times engine_hang_s\)"):
        load(tmp_path, 0.4)


@pytest.mark.usefixtures("none_left")
def test_silence_while_loading_is_accepted_if_the_limit_is_0(stand_in, tmp_path):
    stand_in(LATE)
    with pytest.raises(TimeoutError):
        load(tmp_path, 0.0, within_s=1)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-9, "SIGKILL, killed from outside, as by kill -9 or by the system when memory ran out"),
        (-11, "SIGSEGV"),
        (-64, "SIGRTMAX"),
        (-40, "signal 40"),
        (3, "it ended with exit code 3"),
        (0, "it ended with exit code 0"),
    ],
)
def test_exit_is_described(code, words):
    assert describe_exit(code) == words


def test_plan_is_described_by_its_first_spans():
    plan = [{"request": f"r{i}", "first_token": 7 * i, "num_tokens": i + 1} for i in range(6)]
    assert describe_plan(plan[1:2]) == "the plan of 2 from token 7 of r1"
    assert describe_plan(plan).endswith("4 from token 21 of r3 and 2 more") and describe_plan([]) == "no plan"


def test_errors_keep_their_kind_and_unknown_ones_are_user_errors():
    error = error_of(Rejected(number=1, kind="RequestError", reason="too long"))
    assert type(error) is RequestError and str(error) == "too long"
    assert type(error_of(Refused(kind="KernelError", reason="x"))) is KernelError
    assert type(error_of(Rejected(number=1, kind="HostMemoryLow", reason="x"))) is HostMemoryLow
    assert type(error_of(Refused(kind="CacheError", reason="x"))) is UserError


def test_log_keeps_the_last_lines_and_copies_all_to_stderr(capsys):
    lines = [f"line {number}" for number in range(LOG_LINES + 5)]
    text = "\n".join([*lines, "x" * (LINE_BYTES + 10), "odd \udcff byte, no end"])
    log = LogTail(io.BytesIO(text.encode(errors="surrogateescape")))
    deadline = time.monotonic() + 5
    while not log.is_over() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(log.lines) == LOG_LINES and log.lines[0] == "line 8"
    assert list(log.lines)[-3:] == ["x" * LINE_BYTES, "x" * 10, "odd � byte, no end"]
    assert capsys.readouterr().err.startswith("line 0\nline 1\n")

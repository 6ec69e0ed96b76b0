"""How a program that has servers under it ends, and how it ends another: asked first, with time; knows no server.

A server under supervision sits in a session of its own: whoever started it must live until it is gone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from firesteel.config import child_environment

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE_S = 120.0  # longer than a server is given: twice its grace, and time for its stacks


def stop_servers_when_ended() -> None:
    """Ctrl-C, SIGTERM and a terminal that closes end this process by way of its clean-up."""
    for number in ENDINGS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup has SIGHUP ignored, and it stays so
            signal.signal(number, leave)


def leave(number: int, frame: FrameType | None) -> None:
    """As an exception, so that servers and cells are stopped on the way out.

    Heard once: a terminal that closes sends SIGHUP more than once, and a second would end the clean-up.
    """
    for each in ENDINGS:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Signals that would end this process by an exception are heard when the block is done: a process that was
    started, but is not yet known to whoever is to stop it, would be left."""
    heard: list[int] = []
    is_main = threading.current_thread() is threading.main_thread()  # others hear none
    before = {number: handler for number in ENDINGS if is_main and callable(handler := signal.getsignal(number))}
    for number in before:
        signal.signal(number, lambda number, _: heard.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if heard:
            signal.raise_signal(heard[0])


def run_apart(
    command: Sequence[str], log: Path, *, most_s: float | None = None, patience_s: float = PATIENCE_S
) -> int | None:
    """Its exit code, None where it took longer than `most_s`; in a session of its own, ended whatever happens."""
    child = None
    try:
        with undisturbed(), log.open("wb") as sink:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True,
                env=child_environment({}),
            )  # fmt: skip
        return child.wait(most_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if child is not None:
            end(child, patience_s)


def end(child: subprocess.Popen[bytes], patience_s: float) -> None:
    """SIGTERM to its process group, so that it stops its server, then SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(patience_s)
            return

"""Clean exits of programs that run servers: on signals, and of child processes.

A supervised server has a session of its own, so the process that started it must outlive it and stop it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, MappingProxyType

from firesteel.config import child_environment

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE_S = 120.0  # more than a server gets: twice its own grace, and time for its stacks


def stop_servers_on_signals() -> None:
    """Makes Ctrl-C, SIGTERM and a closed terminal end this process through its clean-up."""
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # under nohup SIGHUP stays ignored
            signal.signal(number, raise_exit)


def raise_exit(number: int, frame: FrameType | None) -> None:
    """Raises an exception, so that servers and cells are stopped on the way out.

    Only the first signal counts: a closing terminal sends several SIGHUPs, and a second would abort the clean-up.
    """
    for each in STOP_SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Delays stop signals until the block is done.

    A process that was started but is not yet known to the code that must stop it would otherwise be left running.
    """
    pending: list[int] = []
    is_main = threading.current_thread() is threading.main_thread()  # other threads get no signals
    before = {
        number: handler for number in STOP_SIGNALS if is_main and callable(handler := signal.getsignal(number))
    }
    for number in before:
        signal.signal(number, lambda number, _: pending.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if pending:
            signal.raise_signal(pending[0])


def run_child(
    command: Sequence[str],
    log: Path,
    *,
    timeout_s: float | None = None,
    grace_s: float = GRACE_S,
    environment: Mapping[str, str] = MappingProxyType({}),
    without: tuple[str, ...] = (),
) -> int | None:
    """Runs a command in its own session and stops it whatever happens.

    `environment` is added to this process's, the variables `without` are left out of it.
    Returns its exit code, or None if it exceeded `timeout_s`.
    """
    child = None
    try:
        with deferred_signals(), log.open("wb") as sink:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=child_environment(environment, without=without),
            )
        return child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if child is not None:
            terminate(child, grace_s)


def terminate(child: subprocess.Popen[bytes], grace_s: float) -> None:
    """Sends SIGTERM to its process group, so that it stops its server, then SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(grace_s)
            return

"""The engine's process as its parent sees it: started, spoken to, listened to, buried; knows no request."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from firesteel.engine.process.messages import (
    HEAD_BYTES,
    SHOW_STACKS,
    Around,
    Dying,
    FromEngine,
    LedgerSoFar,
    Loading,
    Planned,
    Preparing,
    Ready,
    Refused,
    Rejected,
    Shutdown,
    Start,
    StatisticsAnswer,
    Step,
    ToEngine,
    pack,
    parse_from_engine,
    read_head,
)
from firesteel.engine.process.watchdog import until_silent
from firesteel.errors import EngineDied, KernelError, RequestError, UserError

Progress = Callable[[int, int], None]  # done, in all
PROGRAM = ("-m", "firesteel.engine.process.main")
LOG_LINES = 200
LINE_BYTES = 4096
POLL_S = 0.01
EXIT_S = 2.0  # for a process whose socket closed to be gone; with much memory it takes longer
STOP_S = 10.0  # for a process that was told to shut down
LOAD_PATIENCE = 5  # times engine_hang_s: imports, checks of memory and allocations say nothing while they last
BURY_S = 60.0  # for a process that was killed: a driver may hold it back while it frees memory
STACKS_S = 0.5  # for a process that hangs to write its stacks
LOG_S = 1.0  # for the last lines: programs that it started may hold the log open
PLAN_SPANS = 4  # of a plan that are named in an error; the crash bundle has all
KINDS = {kind.__name__: kind for kind in (KernelError, RequestError)}  # of errors that arrive by name
SIGKILL_HINT = "killed from outside, as by kill -9 or by the system for want of memory"


class EngineProcess:
    """Keeps what it last heard, so that a death can be explained."""

    def __init__(self, program: Sequence[str] = ()) -> None:
        """`program`: arguments of Python in place of our engine's; the socket's number is added to them."""
        ours, theirs = socket.socketpair()
        with theirs:
            descriptor = theirs.fileno()
            self._popen = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", *(program or PROGRAM), str(descriptor)],
                pass_fds=[descriptor], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the parent, which then closes the socket
            )  # fmt: skip
        assert self._popen.stdout is not None
        self._socket = ours
        self._log = LogTail(self._popen.stdout)
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None
        self._dying: str | None = None
        self._num_heard = 0
        self.surroundings: dict[str, Any] = {}
        self.ledger: list[dict[str, Any]] = []
        self.last_plan: list[dict[str, Any]] = []

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def log_tail(self) -> list[str]:
        return list(self._log.lines)

    async def load(
        self, start: Start, progress: Progress | None = None, preparing: Progress | None = None
    ) -> Ready:
        """Raises the UserError that the engine met, or EngineDied without a bundle, also where it hangs."""
        self._reader, self._writer = await asyncio.open_unix_connection(sock=self._socket)
        self.send(start)
        watching = asyncio.create_task(self._end_if_loading_hangs(start.config.process.engine_hang_s))
        try:
            return await self._become_ready(progress, preparing)
        finally:
            watching.cancel()

    def send(self, message: ToEngine) -> None:
        """Never waits; what a dead process is sent is lost."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(pack(message))

    async def flush(self) -> None:
        """Waits while much is on the way."""
        if self._writer is not None:
            with contextlib.suppress(ConnectionError):
                await self._writer.drain()

    async def receive(self) -> Step | Rejected | StatisticsAnswer | None:
        """The next message about requests; None when the process has closed its end."""
        while (message := await self._next()) is not None:
            if isinstance(message, Step | Rejected | StatisticsAnswer):
                return message
        return None

    async def end_if_it_hangs(self, is_awaited: Callable[[], bool], limit_s: float) -> None:
        """Waits for a silence of `limit_s`, has the stacks written to the log and ends the process."""
        await until_silent(lambda: self._num_heard, is_awaited, limit_s)
        await self._end(f"it hung: no word for {limit_s:g} s (engine_hang_s) at {describe_plan(self.last_plan)}")

    async def cause_of_death(self) -> str:
        """To be asked once nothing more is received."""
        ended = await _comes_true(self._is_over, EXIT_S)
        await _comes_true(self._log.is_over, LOG_S)
        if self._dying is not None:
            return self._dying
        return describe_exit(self._popen.returncode) if ended else "it closed its connection and does not end"

    async def bury(self) -> None:
        """Ends it if need be; afterwards there is no process, no zombie and no open file of it."""
        if self._popen.poll() is None:
            self._popen.kill()
        await _comes_true(self._is_over, BURY_S)
        await _comes_true(self._log.is_over, LOG_S)
        if self._writer is None:
            self._socket.close()
            return
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    async def stop(self) -> None:
        """Politely at first; someone must go on receiving meanwhile, or it may wait to be heard."""
        self.send(Shutdown())
        await _comes_true(self._is_over, STOP_S)
        await self.bury()

    async def _become_ready(self, progress: Progress | None, preparing: Progress | None) -> Ready:
        while (message := await self._next()) is not None:
            match message:
                case Loading() if progress is not None:
                    progress(message.done_bytes, message.all_bytes)
                case Preparing() if preparing is not None:
                    preparing(message.done, message.total)
                case Refused():
                    raise error_of(message)
                case Ready() if self._dying is None:  # one found to hang is being ended
                    return message
        raise EngineDied(f"the engine died while it was started: {await self.cause_of_death()}")

    async def _end_if_loading_hangs(self, engine_hang_s: float) -> None:
        limit_s = LOAD_PATIENCE * engine_hang_s
        await until_silent(lambda: self._num_heard, lambda: True, limit_s)
        await self._end(f"it hung while loading: no word for {limit_s:g} s ({LOAD_PATIENCE} times engine_hang_s)")

    async def _end(self, cause: str) -> None:
        """With its stacks in the log, unless it is too young to write them."""
        self._dying = cause
        self._popen.send_signal(SHOW_STACKS)
        await asyncio.sleep(STACKS_S)
        self._popen.kill()
        if self._writer is not None:  # a driver may hold the process back: its end is not waited for
            self._writer.transport.abort()

    def _is_over(self) -> bool:
        return self._popen.poll() is not None

    async def _next(self) -> FromEngine | None:
        try:
            head = await self._reader.readexactly(HEAD_BYTES)
            message = parse_from_engine(await self._reader.readexactly(read_head(head)))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        self._num_heard += 1
        self._remember(message)
        return message

    def _remember(self, message: FromEngine) -> None:
        match message:
            case Around():
                self.surroundings = message.surroundings
            case Planned():
                self.last_plan = [
                    {"request": name, "first_token": start, "num_tokens": end - start}
                    for name, start, end in message.spans
                ]
            case LedgerSoFar():
                self.ledger = [row.as_dict() for row in message.rows]
            case Dying():
                self._dying = message.cause


class LogTail:
    """The last lines of a stream, which is also passed on to stderr."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.lines: deque[str] = deque(maxlen=LOG_LINES)
        self._stream = stream
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def _read(self) -> None:
        with self._stream:
            while line := self._stream.readline(LINE_BYTES):
                text = line.decode(errors="replace").rstrip("\n")
                self.lines.append(text)
                print(text, file=sys.stderr, flush=True)


async def _comes_true(condition: Callable[[], bool], patience_s: float) -> bool:
    clock = asyncio.get_running_loop().time
    deadline = clock() + patience_s
    while not condition():
        if clock() > deadline:
            return False
        await asyncio.sleep(POLL_S)
    return True


def error_of(message: Refused | Rejected) -> UserError:
    return KINDS.get(message.kind, UserError)(message.reason)


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"it ended with exit code {code}"
    known = {one.value: one.name for one in signal.Signals}
    name = known.get(-code, f"signal {-code}")
    return f"{name}, {SIGKILL_HINT}" if name == "SIGKILL" else name


def describe_plan(plan: Sequence[Mapping[str, Any]]) -> str:
    if not plan:
        return "no plan"
    spans = [
        f"{span['num_tokens']} from token {span['first_token']} of {span['request']}" for span in plan[:PLAN_SPANS]
    ]
    more = f" and {len(plan) - PLAN_SPANS} more" if len(plan) > PLAN_SPANS else ""
    return f"the plan of {', '.join(spans)}{more}"

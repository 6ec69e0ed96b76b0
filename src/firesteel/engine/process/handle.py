"""Parent-side handle of the engine process: start, send, receive, reap."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from firesteel.engine.process.liveness import until_silent
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
from firesteel.errors import EngineDied, HostMemoryLow, KernelError, RequestError, UserError

Progress = Callable[[int, int], None]  # done, total
PROGRAM = ("-m", "firesteel.engine.process.main")
LOG_LINES = 200
LINE_BYTES = 4096
POLL_S = 0.01
EXIT_S = 2.0  # for a process whose socket closed to exit; it may take longer with much memory
STOP_S = 10.0  # for a process that was told to shut down
LOAD_PATIENCE = 5  # times engine_hang_s: imports, memory checks and allocations send no messages
REAP_S = 60.0  # for a killed process: the driver may hold it back while it frees memory
STACKS_S = 0.5  # for a hung process to write its stacks
LOG_S = 1.0  # for the last log lines: programs started by the engine may hold the log open
PLAN_SPANS = 4  # named in an error; the crash bundle has all
KINDS = {kind.__name__: kind for kind in (HostMemoryLow, KernelError, RequestError)}  # errors that arrive by name
SIGKILL_HINT = "killed from outside, as by kill -9 or by the system when memory ran out"


class EngineProcess:
    """A running engine process; its last messages are kept to explain its death."""

    def __init__(self, program: Sequence[str] = ()) -> None:
        """Starts the process. `program` replaces the engine's Python arguments; the socket's number is appended."""
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as undo:
            undo.callback(ours.close)
            descriptor = theirs.fileno()
            self._popen = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", *(program or PROGRAM), str(descriptor)],
                pass_fds=[descriptor],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the parent, which then closes the socket
            )
            undo.callback(self._popen.wait)
            undo.callback(self._popen.kill)
            assert self._popen.stdout is not None
            try:
                self._log = LogTail(self._popen.stdout)
            except RuntimeError as error:  # the system's limit on threads
                self._popen.stdout.close()
                raise OSError(errno.EAGAIN, str(error)) from error
            undo.pop_all()
        self._socket = ours
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None
        self._dying: str | None = None
        self._num_messages = 0
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
        """Loads the model. Raises the engine's UserError, or EngineDied without a bundle if it dies or hangs."""
        self._reader, self._writer = await asyncio.open_unix_connection(sock=self._socket)
        self.send(start)
        watching = asyncio.create_task(self._kill_if_loading_hangs(start.config.process.engine_hang_s))
        try:
            return await self._become_ready(progress, preparing)
        finally:
            watching.cancel()

    def send(self, message: ToEngine) -> None:
        """Queues a message without waiting; messages to a dead process are lost."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(pack(message))

    async def flush(self) -> None:
        """Waits while the send buffer is full."""
        if self._writer is not None:
            with contextlib.suppress(ConnectionError):
                await self._writer.drain()

    async def receive(self) -> Step | Rejected | StatisticsAnswer | None:
        """Returns the next message for a reader; None when the process has closed its end."""
        while (message := await self._next()) is not None:
            if isinstance(message, Step | Rejected | StatisticsAnswer):
                return message
        return None

    async def kill_if_hung(self, is_awaited: Callable[[], bool], limit_s: float) -> None:
        """Waits for `limit_s` without a message, then has the stacks written to the log and kills the process."""
        await until_silent(lambda: self._num_messages, is_awaited, limit_s)
        await self._kill(
            f"it hung: no message for {limit_s:g} s (engine_hang_s) at {describe_plan(self.last_plan)}"
        )

    async def cause_of_death(self) -> str:
        """Returns why the process ended; to be called after the last message was received."""
        ended = await _wait_for(self._is_over, EXIT_S)
        await _wait_for(self._log.is_over, LOG_S)
        if self._dying is not None:
            return self._dying
        return describe_exit(self._popen.returncode) if ended else "it closed its connection but does not exit"

    async def reap(self) -> None:
        """Kills the process if it still runs; afterwards no process, zombie or open file of it is left."""
        if self._popen.poll() is None:
            self._popen.kill()
        await _wait_for(self._is_over, REAP_S)
        await _wait_for(self._log.is_over, LOG_S)
        if self._writer is None:
            self._socket.close()
            return
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    async def stop(self) -> None:
        """Asks for a shutdown, then kills. Receive meanwhile, or the engine may block in a send."""
        self.send(Shutdown())
        await _wait_for(self._is_over, STOP_S)
        await self.reap()

    async def _become_ready(self, progress: Progress | None, preparing: Progress | None) -> Ready:
        while (message := await self._next()) is not None:
            match message:
                case Loading() if progress is not None:
                    progress(message.done_bytes, message.all_bytes)
                case Preparing() if preparing is not None:
                    preparing(message.done, message.total)
                case Refused():
                    raise error_of(message)
                case Ready() if self._dying is None:  # a hung engine is being killed
                    return message
        raise EngineDied(f"the engine died while starting: {await self.cause_of_death()}")

    async def _kill_if_loading_hangs(self, engine_hang_s: float) -> None:
        limit_s = LOAD_PATIENCE * engine_hang_s
        await until_silent(lambda: self._num_messages, lambda: True, limit_s)
        await self._kill(
            f"it hung while loading: no message for {limit_s:g} s ({LOAD_PATIENCE} times engine_hang_s)"
        )

    async def _kill(self, cause: str) -> None:
        """Kills the process after its stacks were logged, unless it is too early to write them."""
        self._dying = cause
        self._popen.send_signal(SHOW_STACKS)
        await asyncio.sleep(STACKS_S)
        self._popen.kill()
        if self._writer is not None:  # the driver may hold the process back, so its exit is not awaited
            self._writer.transport.abort()

    def _is_over(self) -> bool:
        return self._popen.poll() is not None

    async def _next(self) -> FromEngine | None:
        try:
            head = await self._reader.readexactly(HEAD_BYTES)
            message = parse_from_engine(await self._reader.readexactly(read_head(head)))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        self._num_messages += 1
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
    """The last lines of a stream, which is also copied to stderr."""

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
                with contextlib.suppress(OSError):  # a closed terminal must not stop the reading
                    print(text, file=sys.stderr, flush=True)


async def _wait_for(condition: Callable[[], bool], patience_s: float) -> bool:
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
    known = {number.value: number.name for number in signal.Signals}
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

"""Serves an application on a socket until a signal stops it, or until its engine has failed."""

from __future__ import annotations

import asyncio
import errno
import math
import resource
import signal
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from firesteel.config import ServerConfig
from firesteel.errors import UserError
from firesteel.server.http.admission import Admission
from firesteel.server.http.connections import Connection, ConnectionTable, RareWarning
from firesteel.server.http.drain import TELL_S

KEEP_ALIVE_S = 75
POLL_S = 0.05
LAST_RESORT_S = 3 * TELL_S  # after `drain_s`, for clients to be told; connections that are left then are cut
ACCEPTS = 128  # connections accepted per turn of the event loop; each of them can fail for lack of descriptors
BACKLOG = 1024  # connections that wait to be accepted
MAX_CONNECTIONS = 4096  # further ones get 503
OTHER_FILES = 256  # left for the log, the engine's sockets, libraries, and ACCEPTS connections to refuse
# Keepalive probes, in seconds: a peer that has vanished is noticed within two minutes.
PROBES = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
NO_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def bind(config: ServerConfig) -> socket.socket:
    """Returns a bound socket that does not listen yet: connections are refused until the model is loaded."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise UserError(f"--host {config.host}: {error.strerror}") from error
    bound = socket.socket(family, kind, protocol)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in PROBES.items():
        if hasattr(socket, option):
            bound.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    if config.slow_client_s and hasattr(socket, "TCP_USER_TIMEOUT"):  # data that is not acknowledged is given up
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * config.slow_client_s))
    try:
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise UserError(
            f"cannot listen on {config.host} port {config.port}: {error.strerror}; --port 0 takes a free port"
        ) from error
    return bound


def url_of(bound: socket.socket) -> str:
    """Returns a URL that this machine can use, even if the socket is bound to all addresses."""
    host, port = bound.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if bound.family == socket.AF_INET6 else f"http://{host}:{port}"


def raise_connection_limit() -> int:
    """Raises the limit of open files as far as MAX_CONNECTIONS needs; returns the connections it then allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + OTHER_FILES
    files = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    return max(1, files - OTHER_FILES)


class Server(uvicorn.Server):
    """Stops at a signal or when the engine has failed: new requests are refused, those past `drain_s` are ended.

    SIGHUP (a closed terminal) is such a signal, unless it was ignored when the program started (nohup).
    """

    def __init__(
        self,
        app: ASGIApp,
        config: ServerConfig,
        admission: Admission,
        *,
        when_ready: Callable[[], None] = lambda: None,
        when_stopping: Callable[[], None] = lambda: None,
        find_failure: Callable[[], str | None] = lambda: None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_keep_alive=KEEP_ALIVE_S,
                http=Connection,
                ws="none",
                backlog=ACCEPTS,
                server_header=False,
                timeout_graceful_shutdown=math.ceil(config.drain_s + LAST_RESORT_S),
            )
        )
        self.failure: str | None = None  # why the engine failed, if that stopped the server
        self._drain_s, self._is_hurried = config.drain_s, False
        self.table = ConnectionTable(raise_connection_limit())
        self.server_state = self.table
        self._admission = admission
        self._no_descriptors = RareWarning("no descriptor is left for a new connection; raise ulimit -n")
        self._when_ready, self._when_stopping, self._find_failure = when_ready, when_stopping, find_failure

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self.handle_loop_error)
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(BACKLOG)
        self._when_ready()

    async def on_tick(self, counter: int) -> bool:
        self.failure = self._find_failure()
        if self.failure is not None:
            self.should_exit = self._admission.is_stopping = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ending = asyncio.create_task(self._end_drain())
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        with super().capture_signals():
            is_main = threading.current_thread() is threading.main_thread()
            if not is_main or signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
                yield
                return
            before = signal.signal(signal.SIGHUP, self.handle_exit)
            try:
                yield
            finally:
                signal.signal(signal.SIGHUP, before)

    def handle_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Makes room if a connection cannot be accepted for lack of resources; logs all other errors."""
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in NO_RESOURCES and "socket" in context:
            self._no_descriptors.log(error=error.strerror, connections=len(self.table.connections))
            self.table.close_idle()
        else:
            loop.default_exception_handler(context)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begins the drain. A second signal ends it, a third one does not wait until clients were told.

        The signal is not passed on, because the engine must still be closed.
        """
        is_first = not self.should_exit
        self.force_exit, self._is_hurried = self._is_hurried, not is_first
        self.should_exit = self._admission.is_stopping = True
        if is_first:
            with suppress(OSError):  # the terminal may be closed
                self._when_stopping()

    async def _end_drain(self) -> None:
        """Fails the requests that are under way after `drain_s` or at a second signal."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._drain_s
        while clock() < deadline and not self._is_hurried:
            await asyncio.sleep(POLL_S)
        await self._admission.drain.end()

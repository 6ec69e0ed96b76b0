"""A small pool of children that compile clients' grammars on trial, within limits on time and memory.

    trials = GrammarTrials(config.server, metrics.count_stopped_trial)
    await trials.check(grammar)         # raises ApiError 400 for a schema that cannot be enforced
    trials.close()

A trial that takes too long, or whose client left, is killed with its child, and another child is started.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import signal
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Literal

from firesteel.chat.grammar import Grammar, SchemaError
from firesteel.chat.trial import MISSING, TOGETHER, WITHOUT_LIBRARY
from firesteel.config import ServerConfig
from firesteel.errors import UserError
from firesteel.server.grammar.child import ChildDied, TrialChild
from firesteel.server.http.admission import BUSY_RETRY_S
from firesteel.server.http.errors import RETRY_S, ApiError

log = logging.getLogger(__name__)
StopReason = Literal["time", "memory", "crash", "panic", "cancelled"]
MIB = 1 << 20
CHILDREN = 2  # while one runs a slow trial, the other serves all other requests
MOST_WAITING = 32  # trials that wait for a child; further ones get 429
# Grammars that passed, because the same tools come with every turn. The engine's cache holds at least as many: a
# client that repeats more of them pays with trials, and cannot keep the engine busy with compilation.
CACHE_SIZE = 64
MOST_PASSED_S = 8.0  # time of their trials, which is about twice that of compilation
TOO_COMPLEX = "schema_too_complex"
INVALID = "invalid_schema"
OUT_OF_MEMORY = (-signal.SIGABRT, -signal.SIGKILL)  # an allocation failed; the system needed the memory


class GrammarTrials:
    """Runs trials in at most CHILDREN processes and remembers the grammars that passed."""

    def __init__(self, config: ServerConfig, count_stop: Callable[[StopReason], None]) -> None:
        self._limit_s = config.schema_timeout_s
        self._memory_mib = config.schema_memory_mib
        self._count_stop = count_stop
        self._idle: list[TrialChild] = []
        self._busy: set[TrialChild] = set()
        self._free = asyncio.Semaphore(CHILDREN)
        self._num_waiting = 0
        self._passed: OrderedDict[bytes, float] = OrderedDict()  # seconds of the trial
        self._is_closed = False

    @property
    def pids(self) -> list[int]:
        """Process ids of the children."""
        return [child.pid for child in (*self._idle, *self._busy)]

    def warm(self) -> None:
        """Starts a child, so that the next grammar does not wait for one."""
        for child in [child for child in self._idle if not child.is_usable]:
            self._idle.remove(child)
            child.kill()
        if not self._is_closed and not self._idle:
            child = TrialChild(int(self._memory_mib * MIB))
            log.debug("child for trials of grammars started", extra={"pid": child.pid})
            self._idle.append(child)

    def close(self) -> None:
        """Kills all children; no other is started."""
        self._is_closed = True
        for child in (*self._idle, *self._busy):
            child.kill()
        self._idle.clear()

    async def check(self, grammar: Grammar) -> None:
        """Raises ApiError if the grammar does not pass its trial. Cancellation kills the trial."""
        key = hashlib.blake2b(grammar.text.encode(), digest_size=16).digest()
        if key in self._passed:
            self._passed.move_to_end(key)
            return
        async with self._take_child() as child:
            start = time.monotonic()
            await self._ask(child, child.ask(grammar), name_of(grammar))
            self._passed[key] = time.monotonic() - start
        while len(self._passed) > CACHE_SIZE or sum(self._passed.values()) > MOST_PASSED_S:
            self._passed.popitem(last=False)

    async def convert(self, name: str, gbnf: str) -> str:
        """Returns a grammar of the field `name` in Lark. Raises ApiError if it cannot be read within the limits."""
        async with self._take_child() as child:
            answer = await self._ask(child, child.convert(name, gbnf), name)
        return str(answer["lark"])

    async def _ask(
        self, child: TrialChild, asked: Coroutine[Any, Any, dict[str, Any]], name: str
    ) -> dict[str, Any]:
        """Awaits the child's answer within the limits; `name` is that of the schema or grammar, for errors."""
        try:
            async with asyncio.timeout(self._limit_s or None):
                answer = await asked
        except TimeoutError:
            limit = f"its compilation takes longer than {self._limit_s:g} s (schema_timeout_s)"
            raise self._stop("time", name, limit, pid=child.pid) from None
        except ChildDied as error:
            if self._is_closed:
                raise stopping() from None
            if error.code in OUT_OF_MEMORY:
                limit = f"its compilation needs more than {self._memory_mib:g} MiB (schema_memory_mib)"
                raise self._stop("memory", name, limit, pid=child.pid) from None
            raise self._stop("crash", name, f"its compilation ends in {error}", pid=child.pid) from None
        except asyncio.CancelledError:
            self._note_stop("cancelled", pid=child.pid)
            raise
        if answer["panic"] is not None:
            child.kill()
            log.warning("llguidance panicked on a schema", extra={"panic": answer["panic"]})
            raise self._stop("panic", name, "llguidance fails on it", pid=child.pid)
        if answer["fault"] is not None:
            raise refuse(SchemaError(*answer["fault"]))
        return answer

    @asynccontextmanager
    async def _take_child(self) -> AsyncIterator[TrialChild]:
        """Lends a child that is ready, and replaces it if it cannot be used again."""
        if self._free.locked() and self._num_waiting >= MOST_WAITING:
            raise ApiError(
                429,
                f"{self._num_waiting} requests wait for the compilation of their schemas: try again later",
                code="overloaded",
                retry_s=BUSY_RETRY_S,
            )
        self._num_waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._num_waiting -= 1
        try:
            async with self._lend() as child:
                yield child
        finally:
            self._free.release()

    @asynccontextmanager
    async def _lend(self) -> AsyncIterator[TrialChild]:
        self.warm()
        if not self._idle:
            raise stopping()
        child = self._idle.pop()
        self._busy.add(child)
        try:
            await self._start(child)
            yield child
        finally:
            self._busy.discard(child)
            if child.is_usable and not self._is_closed:
                self._idle.append(child)
            else:
                child.kill()
                self.warm()

    async def _start(self, child: TrialChild) -> None:
        try:
            await child.start()
        except (ChildDied, TimeoutError) as error:
            if self._is_closed:
                raise stopping() from None
            if isinstance(error, ChildDied) and error.code == WITHOUT_LIBRARY:
                raise UserError(MISSING) from None
            log.error("no child for trials of grammars", extra={"cause": str(error) or "it does not answer"})
            raise ApiError(
                503, "schemas cannot be compiled now; see the log", code="unavailable", retry_s=RETRY_S
            ) from None

    def _stop(self, reason: StopReason, name: str, limit: str, *, pid: int) -> ApiError:
        self._note_stop(reason, pid=pid)
        return refuse(SchemaError(name, limit), code=TOO_COMPLEX)

    def _note_stop(self, reason: StopReason, *, pid: int) -> None:
        self._count_stop(reason)
        log.debug("trial of a grammar stopped", extra={"reason": reason, "pid": pid})


def name_of(grammar: Grammar) -> str:
    """Returns the name of the grammar's schema, or of all of them."""
    return next(iter(grammar.rules)) if len(grammar.rules) == 1 else TOGETHER


def stopping() -> ApiError:
    return ApiError(503, "the server is stopping", code="stopping", retry_s=BUSY_RETRY_S)


def refuse(error: SchemaError, *, code: str = INVALID) -> ApiError:
    """Returns the answer to a schema that cannot be enforced."""
    is_tool = error.name == TOGETHER or error.name.startswith("tool ")
    return ApiError(400, str(error), param="tools" if is_tool else error.name, code=code)

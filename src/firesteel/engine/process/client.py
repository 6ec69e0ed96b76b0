"""Asyncio client of an engine in another process: requests in, tokens out, and a new engine when one dies.

client = await EngineClient.start(directory, config)
async with client.open([request]) as stream:
    while outputs := await stream.take(): ...
await client.close()
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from firesteel.config import Config
from firesteel.engine.process.crash import CrashReport, write_bundle
from firesteel.engine.process.handle import EngineProcess, Progress
from firesteel.engine.process.messages import GetLedger, GetStatistics, Output, Ready, Start, Submit
from firesteel.engine.process.waiters import OutputStream, Waiters
from firesteel.engine.statistics import Statistics
from firesteel.errors import EngineDied, EngineFailed, RequestError, UserError
from firesteel.surroundings import shown_command
from firesteel.types import Request

CLOSED = "the engine was shut down"
RESTART_WINDOW_S = 600.0  # engine_restarts counts over this time
SPAWN_RETRY_S = 1.0  # between attempts to create a process, while descriptors, processes or memory are short
IDLE_POLLS = 4  # questions to an idle engine per engine_hang_s
MAX_IDLE_POLL_S = 10.0
_log = logging.getLogger(__name__)


class EngineClient:
    def __init__(self, directory: Path, config: Config, program: Sequence[str] = ()) -> None:
        """Creates a client without an engine: use `start`."""
        self.directory = directory
        self.config = config
        self.program = program
        self.facts: Ready  # of the current engine, or of the last one
        self.num_deaths = 0
        self._process: EngineProcess
        self._supervisor: asyncio.Task[None]
        self._waiters = Waiters()
        self._restarts: deque[float] = deque()  # times
        self._settled = asyncio.Event()  # set while an engine runs, and once none will run any more
        self._failure: EngineFailed | None = None  # why none will run

    @classmethod
    async def start(
        cls,
        directory: Path,
        config: Config,
        *,
        progress: Progress | None = None,
        preparing: Progress | None = None,
        program: Sequence[str] = (),
    ) -> EngineClient:
        """Loads the checkpoint; `progress` is called with bytes, `preparing` with steps, done and in total.

        Raises the engine's UserError, or EngineDied: the first start is not retried. `program` may name another
        engine with the same protocol as `engine/process/main.py`.
        """
        client = cls(directory, config, program)
        await client._open(progress, preparing)
        client._supervisor = asyncio.create_task(client._supervise())
        return client

    @property
    def is_ready(self) -> bool:
        """True while an engine runs; otherwise one is being started, or `failure` says why none is."""
        return self._settled.is_set() and self._failure is None

    @property
    def failure(self) -> str | None:
        return None if self._failure is None else str(self._failure)

    @property
    def pid(self) -> int:
        """Process id of the engine, or of the last one."""
        return self._process.pid

    @property
    def ledger(self) -> list[dict[str, Any]]:
        """The engine's ledger as last received."""
        return self._process.ledger

    @asynccontextmanager
    async def open(self, requests: Sequence[Request]) -> AsyncIterator[OutputStream]:
        """Submits requests and gives the stream of their outputs. Leaving it ends requests that have not ended.

        Waits while an engine is being started. Raises RequestError if a request can never run, EngineFailed if
        there is no engine.
        """
        process = await self._running()
        for request in requests:
            self._check(request)
        numbers, queue = self._waiters.add([request.request_id for request in requests])
        stream = OutputStream(numbers, queue, process.send)
        try:
            for request, number in zip(requests, numbers, strict=True):
                process.send(Submit.of(request, number))
            await process.flush()
            yield stream
        finally:
            for number in numbers:
                self._waiters.remove(number)
            stream.cancel()

    async def generate(self, request: Request) -> AsyncGenerator[Output, None]:
        """Yields the outputs of one request. Closing the generator early ends the request."""
        async with self.open([request]) as stream:
            while outputs := await stream.take():
                for output in outputs[0]:
                    yield output

    async def refresh_ledger(self) -> None:
        """Brings `ledger` up to date; verdicts on machine code that was not read yet are added later."""
        (await self._running()).send(GetLedger())
        await self.statistics()  # answered after the ledger was sent

    async def statistics(self) -> Statistics:
        """Returns the statistics of the current engine: a restarted one begins at zero."""
        return await self._ask_statistics(await self._running())

    async def close(self) -> None:
        """Fails the requests in flight and stops the process; may be called twice."""
        is_first, was_ready = self.failure != CLOSED, self.is_ready
        self._give_up(EngineFailed(CLOSED))
        if is_first and was_ready:
            await self._process.stop()
        self._supervisor.cancel()
        with suppress(asyncio.CancelledError):
            await self._supervisor
        await self._process.reap()

    async def _open(self, progress: Progress | None = None, preparing: Progress | None = None) -> None:
        """Starts an engine; if that fails, no process is left."""
        async with AsyncExitStack() as stack:
            self._process = process = EngineProcess(self.program)
            stack.push_async_callback(process.reap)
            try:
                start = Start(directory=str(self.directory), config=self.config)
                self.facts = await process.load(start, progress, preparing)
            except EngineDied as died:
                raise self._report(str(died)) from None
            stack.pop_all()
        self._settled.set()

    async def _supervise(self) -> None:
        """Delivers the engine's messages; when it dies, fails the requests in flight and starts another."""
        try:
            while self._failure is None:
                await self._listen()
                if self._failure is None:
                    self._settled.clear()
                    died = self._report(f"the engine died: {await self._process.cause_of_death()}")
                    if self._may_restart():
                        self._waiters.fail_all(died)
                        await self._process.reap()
                        await self._restart()
                    else:
                        self._give_up_after(died)
        finally:
            self._give_up(EngineFailed("engine supervisor stopped"))
            await self._process.reap()

    async def _listen(self) -> None:
        """Receives until the engine is gone; kills one that hangs."""
        process, limit_s = self._process, self.config.process.engine_hang_s
        async with AsyncExitStack() as stack:
            for watcher in (process.kill_if_hung(self._waiters.is_awaited, limit_s), self._ask_while_idle(limit_s)):
                stack.callback(asyncio.create_task(watcher).cancel)
            while (message := await process.receive()) is not None:
                self._waiters.hand_out(message)

    async def _ask_while_idle(self, limit_s: float) -> None:
        """Asks an engine without requests a question from time to time: one that hangs does not answer."""
        process = self._process
        while limit_s:
            await asyncio.sleep(min(MAX_IDLE_POLL_S, limit_s / IDLE_POLLS))
            if not self._waiters.is_awaited():
                with suppress(EngineDied):
                    await self._ask_statistics(process)

    async def _ask_statistics(self, process: EngineProcess) -> Statistics:
        number, answer = self._waiters.ask()
        try:
            process.send(GetStatistics(number=number))
            return await answer
        finally:
            self._waiters.forget(number)

    def _report(self, what: str) -> EngineDied:
        """Counts a death and writes its crash bundle."""
        self.num_deaths += 1
        process = self._process
        report = CrashReport(
            cause=what,
            log_tail=process.log_tail,
            command=shown_command(sys.argv),
            config=asdict(self.config),
            engine=msgspec.structs.asdict(self.facts) if hasattr(self, "facts") else {},
            ledger=process.ledger,
            last_plan=process.last_plan,
            surroundings=process.surroundings,
            in_flight=self._waiters.unanswered(),
        )
        try:
            bundle = write_bundle(Path(self.config.process.crash_dir).resolve(), report)
        except OSError as error:
            return EngineDied(f"{what}; no crash bundle could be written: {error}")
        return EngineDied(f"{what}; crash bundle: {bundle}", bundle)

    async def _restart(self) -> None:
        """Starts another engine, with further attempts as long as `_may_restart` allows them."""
        while True:
            try:
                return await self._open_patiently()
            except (UserError, EngineDied) as error:
                if not self._may_restart():
                    return self._give_up_after(error)

    async def _open_patiently(self) -> None:
        """Starts an engine; waits while the system lacks descriptors, processes or memory to create a process."""
        clock = asyncio.get_running_loop().time
        deadline, is_first = clock() + RESTART_WINDOW_S, True
        while True:
            try:
                return await self._open()
            except OSError as error:
                if clock() > deadline:
                    raise EngineDied(f"no process could be created for {RESTART_WINDOW_S:g} s: {error}") from error
                if is_first:
                    _log.warning("no process can be created: %s; trying every %g s", error, SPAWN_RETRY_S)
                is_first = False
            await asyncio.sleep(SPAWN_RETRY_S)

    def _give_up_after(self, last: UserError | EngineDied) -> None:
        failure = EngineFailed(
            f"the engine is not restarted: {self.config.process.engine_restarts} restarts within "
            f"{RESTART_WINDOW_S:g} s is the limit (engine_restarts). {last}",
            getattr(last, "bundle", None),
        )
        self._give_up(failure)

    def _may_restart(self) -> bool:
        """Counts a restart if it is within the limit; those outside of the window are forgotten."""
        now, limits = asyncio.get_running_loop().time(), self.config.process
        while self._restarts and now - self._restarts[0] > RESTART_WINDOW_S:
            self._restarts.popleft()
        if len(self._restarts) >= limits.engine_restarts:
            return False
        self._restarts.append(now)
        return True

    def _check(self, request: Request) -> None:
        """Refuses requests that cannot cross to the other process."""
        for given, what, instead in (
            (request.mask is not None, "a mask", "SamplingParams.grammar"),
            (request.score, "a score", "SamplingParams.prompt_logprobs or LLM.logits"),
        ):
            if given:
                raise RequestError(
                    f"request {request.request_id}: {what} cannot cross to the engine's process: use {instead}"
                )
        request.check_vocabulary(self.facts.vocab_size)

    async def _running(self) -> EngineProcess:
        await self._settled.wait()
        if self._failure is not None:
            raise self._failure.copy()
        return self._process

    def _give_up(self, failure: EngineFailed) -> None:
        """Fails all current and future requests permanently."""
        self._failure = self._failure or failure
        self._settled.set()
        self._waiters.fail_all(self._failure)

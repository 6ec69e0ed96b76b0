"""The engine in another process, for asyncio: requests in, tokens out, another engine when one dies; knows no text.

client = await EngineClient.start(directory, config)
async for output in client.generate(request): ...
await client.close()
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from firesteel.config import Config
from firesteel.engine.process.crash import CrashReport, write_bundle
from firesteel.engine.process.handle import EngineProcess, Progress
from firesteel.engine.process.messages import Cancel, GetLedger, GetStatistics, Ready, Start, Submit
from firesteel.engine.process.waiters import CANCELLED, InFlight
from firesteel.engine.statistics import Statistics
from firesteel.errors import EngineDied, RequestError, UserError
from firesteel.types import Request, StepOutput

CLOSED = "the engine was shut down"
RESTART_WINDOW_S = 600.0  # engine_restarts counts over this time


class EngineClient:
    def __init__(self, directory: Path, config: Config, program: Sequence[str] = ()) -> None:
        """Use `start`."""
        self.directory = directory
        self.config = config
        self.program = program
        self.facts: Ready  # of the engine that runs, or ran last
        self.num_deaths = 0
        self._process: EngineProcess
        self._supervisor: asyncio.Task[None]
        self._in_flight = InFlight()
        self._restarts: deque[float] = deque()  # when
        self._settled = asyncio.Event()  # an engine runs, or none ever will again
        self._failure: tuple[str, Path | None] | None = None  # why none will

    @classmethod
    async def start(
        cls, directory: Path, config: Config, *, progress: Progress | None = None,
        capturing: Progress | None = None, program: Sequence[str] = (),
    ) -> EngineClient:  # fmt: skip
        """Loads the checkpoint; `progress` is called with bytes done and in all, `capturing` with decoding steps.

        Raises the UserError that the engine met, or EngineDied: the first start is not tried twice. `program`
        may name another engine, which speaks as `engine/process/main.py` does.
        """
        client = cls(directory, config, program)
        await client._open(progress, capturing)
        client._supervisor = asyncio.create_task(client._supervise())
        return client

    @property
    def is_ready(self) -> bool:
        """Whether an engine runs; otherwise one is being started, or `failure` says why none is."""
        return self._settled.is_set() and self._failure is None

    @property
    def failure(self) -> str | None:
        return None if self._failure is None else self._failure[0]

    @property
    def pid(self) -> int:
        """Of the engine's process, or of the last one."""
        return self._process.pid

    @property
    def ledger(self) -> list[dict[str, Any]]:
        """What ran in the engine, as it said last."""
        return self._process.ledger

    async def generate(self, request: Request) -> AsyncGenerator[StepOutput, None]:
        """The last output has a finish reason. Closing it early ends the request, as does `cancel`.

        Waits while an engine is being started. Raises RequestError where the request could never run, EngineDied
        where the engine died under it.
        """
        async with aclosing(self.generate_lists(request)) as lists:
            async for outputs in lists:
                for output in outputs:
                    yield output

    async def generate_lists(self, request: Request) -> AsyncGenerator[list[StepOutput], None]:
        """The same, but all outputs at once that have come meanwhile: a slow reader has less to do."""
        process = await self._running()
        self._check(request)
        number, reader = self._in_flight.add(request.request_id)
        is_over = False
        try:
            process.send(Submit.of(request, number))
            await process.flush()
            while not is_over:
                outputs, end = await reader.take()
                is_over = isinstance(end, Exception) or any(one.finish_reason is not None for one in outputs)
                if outputs:
                    yield outputs
                if isinstance(end, Exception):
                    raise end
                if end is CANCELLED:
                    return
        finally:
            self._in_flight.remove(number)
            if not is_over:
                process.send(Cancel(number=number, finished=False))

    def cancel(self, request_id: str) -> bool:
        """Its outputs end with those that have come; False where there is no such request any more."""
        number = self._in_flight.find(request_id)
        if number is not None:
            self._process.send(Cancel(number=number, finished=False))
            self._in_flight.give(number, None)
        return number is not None

    def finish(self, request_id: str) -> bool:
        """The reader found the end by itself, as at a stop string: a last output with statistics follows."""
        number = self._in_flight.find(request_id)
        if number is not None:
            self._process.send(Cancel(number=number, finished=True))
        return number is not None

    async def refresh_ledger(self) -> None:
        """`ledger` is then of now; verdicts on machine code that it lacks come into it later, by themselves."""
        (await self._running()).send(GetLedger())
        await self.statistics()  # which is answered after it

    async def statistics(self) -> Statistics:
        """Of the engine that runs: a restarted one begins at zero."""
        process = await self._running()
        number, answer = self._in_flight.ask()
        try:
            process.send(GetStatistics(number=number))
            return await answer
        finally:
            self._in_flight.forget(number)

    async def close(self) -> None:
        """Ends the requests in flight and the process; may be called twice."""
        is_first, was_ready = self.failure != CLOSED, self.is_ready
        self._give_up(CLOSED, None)
        if is_first and was_ready:
            await self._process.stop()
        self._supervisor.cancel()
        with suppress(asyncio.CancelledError):
            await self._supervisor
        await self._process.bury()

    async def _open(self, progress: Progress | None = None, capturing: Progress | None = None) -> None:
        """Starts an engine; where that fails, no process is left."""
        async with AsyncExitStack() as stack:
            self._process = process = EngineProcess(self.program)
            stack.push_async_callback(process.bury)
            try:
                start = Start(directory=str(self.directory), config=self.config)
                self.facts = await process.load(start, progress, capturing)
            except EngineDied as died:
                raise self._report(str(died)) from None
            stack.pop_all()
        self._settled.set()

    async def _supervise(self) -> None:
        """Hands out what the engine sends; where it dies, fails those in flight and starts another."""
        try:
            while self._failure is None:
                await self._listen()
                if self._failure is None:
                    self._settled.clear()
                    died = self._report(f"the engine died: {await self._process.cause_of_death()}")
                    self._in_flight.end_all(str(died), died.bundle)
                    await self._process.bury()
                    await self._restart(died)
        finally:
            self._give_up("the engine is no longer looked after", None)
            await self._process.bury()

    async def _listen(self) -> None:
        """Until the engine is gone; one that hangs is ended."""
        limit_s = self.config.process.engine_hang_s
        watching = asyncio.create_task(self._process.end_if_it_hangs(self._in_flight.is_awaited, limit_s))
        try:
            while (message := await self._process.receive()) is not None:
                self._in_flight.hand_out(message)
        finally:
            watching.cancel()

    def _report(self, what: str) -> EngineDied:
        """Counts a death and writes its bundle."""
        self.num_deaths += 1
        process = self._process
        report = CrashReport(
            cause=what, log_tail=process.log_tail, config=asdict(self.config), ledger=process.ledger,
            last_plan=process.last_plan, surroundings=process.surroundings,
            in_flight=self._in_flight.unanswered(),
        )  # fmt: skip
        try:
            bundle = write_bundle(Path(self.config.process.crash_dir).resolve(), report)
        except OSError as error:
            return EngineDied(f"{what}; no crash bundle could be written: {error}")
        return EngineDied(f"{what}; crash bundle: {bundle}", bundle)

    async def _restart(self, last: UserError | EngineDied) -> None:
        while self._may_restart():
            try:
                await self._open()
                return
            except (UserError, EngineDied) as error:
                last = error
        process = self.config.process
        self._give_up(
            f"the engine is not started again: {process.engine_restarts} restarts within "
            f"{RESTART_WINDOW_S:g} s is the limit (engine_restarts). {last}",
            getattr(last, "bundle", None),
        )

    def _may_restart(self) -> bool:
        now, limits = asyncio.get_running_loop().time(), self.config.process
        while self._restarts and now - self._restarts[0] > RESTART_WINDOW_S:
            self._restarts.popleft()
        if len(self._restarts) >= limits.engine_restarts:
            return False
        self._restarts.append(now)
        return True

    def _check(self, request: Request) -> None:
        """Refuses what cannot cross to the other process."""
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
            raise EngineDied(*self._failure)
        return self._process

    def _give_up(self, why: str, bundle: Path | None) -> None:
        """For ever: those in flight and those to come fail."""
        self._failure = self._failure or (why, bundle)
        self._settled.set()
        self._in_flight.end_all(*self._failure)

"""Requests at work: the engine's outputs of one or several choices as one stream of pieces; knows no HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from firesteel.engine.process.messages import Ready
from firesteel.engine.statistics import Statistics
from firesteel.server.generate.choice import Piece, Reader
from firesteel.server.http.errors import ApiError
from firesteel.types import Request, StepOutput


class Engine(Protocol):
    """What the server asks of an engine; `EngineClient` is one."""

    facts: Ready
    num_deaths: int

    @property
    def is_ready(self) -> bool: ...

    @property
    def failure(self) -> str | None: ...

    @property
    def ledger(self) -> list[dict[str, Any]]: ...

    def generate_lists(self, request: Request) -> AsyncGenerator[list[StepOutput], None]: ...

    def finish(self, request_id: str) -> bool: ...

    async def statistics(self) -> Statistics: ...

    async def refresh_ledger(self) -> None: ...


async def run_one(engine: Engine, request: Request, reader: Reader) -> AsyncGenerator[Piece, None]:
    """A piece for all outputs that came at once, the last with a finish reason. Closing it ends the request."""
    async with aclosing(engine.generate_lists(request)) as lists:
        async for outputs in lists:
            piece = None if reader.tally.finish_reason is not None else Piece()
            for output in outputs:
                read(engine, request, reader, output, piece)
            if piece is not None:
                yield piece


def read(engine: Engine, request: Request, reader: Reader, output: StepOutput, piece: Piece | None) -> None:
    """Adds an output to a piece. What comes after an end that the reader found is not shown."""
    if piece is None or piece.finish_reason is not None:
        reader.tally.statistics = output.statistics
        return
    if output.error is not None:
        status = 400 if output.finish_reason == "refused" else 500
        raise ApiError(status, f"the request failed: {output.error}", code="generation_failed")
    piece.join(reader.push(output))
    if piece.finish_reason is not None and output.finish_reason is None:
        engine.finish(request.request_id)


async def run_all(
    engine: Engine, requests: Sequence[Request], readers: Sequence[Reader]
) -> AsyncGenerator[tuple[int, Piece], None]:
    """Pieces of all choices with their numbers, as they come."""
    if len(requests) == 1:
        async with aclosing(run_one(engine, requests[0], readers[0])) as pieces:
            async for piece in pieces:
                yield 0, piece
        return
    outbox: asyncio.Queue[tuple[int, Piece] | Exception | None] = asyncio.Queue()

    async def fill(number: int) -> None:
        async with aclosing(run_one(engine, requests[number], readers[number])) as pieces:
            async for piece in pieces:
                outbox.put_nowait((number, piece))

    tasks = [asyncio.create_task(fill(number)) for number in range(len(requests))]
    for task in tasks:
        task.add_done_callback(lambda done: outbox.put_nowait(None if done.cancelled() else _failure(done)))
    try:
        num_open = len(tasks)
        while num_open:
            got = await outbox.get()
            if isinstance(got, Exception):
                raise got
            if got is None:
                num_open -= 1
            else:
                yield got
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _failure(task: asyncio.Task[None]) -> Exception | None:
    error = task.exception()
    assert error is None or isinstance(error, Exception), error
    return error

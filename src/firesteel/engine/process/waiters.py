"""Who waits for the engine's words, by number: for a request's outputs or for statistics; knows no process."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from pathlib import Path

from firesteel.engine.process.handle import error_of
from firesteel.engine.process.messages import Rejected, StatisticsAnswer, Step
from firesteel.engine.statistics import Statistics
from firesteel.errors import EngineDied
from firesteel.types import StepOutput

CANCELLED = "cancelled"


@dataclass(slots=True, eq=False)
class Reader:
    """Who waits for the outputs of a request. None in its inbox: it was cancelled."""

    request_id: str
    inbox: asyncio.Queue[StepOutput | Exception | None] = field(default_factory=asyncio.Queue)
    is_answered: bool = False  # the last is in the inbox, and may lie there for long

    async def take(self) -> tuple[list[StepOutput], Exception | str | None]:
        """What has come, at least one; and an error or CANCELLED that came after it."""
        outputs: list[StepOutput] = []
        while not outputs or not self.inbox.empty():
            got = await self.inbox.get()
            if not isinstance(got, StepOutput):
                return outputs, CANCELLED if got is None else got
            outputs.append(got)
        return outputs, None

    def give(self, output: StepOutput | Exception | None) -> None:
        self.inbox.put_nowait(output)
        self.is_answered |= not isinstance(output, StepOutput) or output.finish_reason is not None


class InFlight:
    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._readers: dict[int, Reader] = {}  # until they have read all
        self._asked: dict[int, asyncio.Future[Statistics]] = {}

    def add(self, request_id: str) -> tuple[int, Reader]:
        """To be removed when all is read."""
        number, reader = next(self._numbers), Reader(request_id)
        self._readers[number] = reader
        return number, reader

    def remove(self, number: int) -> None:
        del self._readers[number]

    def ask(self) -> tuple[int, asyncio.Future[Statistics]]:
        """To be forgotten afterwards."""
        number = next(self._numbers)
        answer: asyncio.Future[Statistics] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        return number, answer

    def forget(self, number: int) -> None:
        del self._asked[number]

    def find(self, request_id: str) -> int | None:
        return next((number for number, one in self._readers.items() if one.request_id == request_id), None)

    def unanswered(self) -> list[str]:
        """Names of the requests that the engine still owes something."""
        return [reader.request_id for reader in self._readers.values() if not reader.is_answered]

    def is_awaited(self) -> bool:
        """Whether the engine owes anybody something."""
        return bool(self.unanswered() or self._asked)

    def give(self, number: int, output: StepOutput | Exception | None) -> None:
        """To who reads it, where anybody does still."""
        if (reader := self._readers.get(number)) is not None:
            reader.give(output)

    def hand_out(self, message: Step | Rejected | StatisticsAnswer) -> None:
        match message:
            case Step():
                for output in message.outputs:
                    if (reader := self._readers.get(output.number)) is not None:
                        reader.give(output.step_output(reader.request_id))
            case Rejected():
                self.give(message.number, error_of(message))
            case StatisticsAnswer():
                answer = self._asked.get(message.number)
                if answer is not None and not answer.done():  # done: whoever asked has gone
                    answer.set_result(message.statistics)

    def end_all(self, why: str, bundle: Path | None) -> None:
        for reader in self._readers.values():
            reader.give(EngineDied(why, bundle))
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(EngineDied(why, bundle))

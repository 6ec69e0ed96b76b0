"""Pending readers of the engine's messages, keyed by number: for outputs of requests or for statistics."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from firesteel.engine.process.handle import error_of
from firesteel.engine.process.messages import Cancel, Output, Rejected, StatisticsAnswer, Step
from firesteel.engine.statistics import Statistics
from firesteel.errors import EngineDied

NO_REQUEST = -1  # index of an error of the whole stream
Queue = asyncio.Queue[tuple[int, Output | Exception]]  # with the index of the request in its stream


@dataclass(slots=True, eq=False)
class Waiter:
    """A request whose outputs are read through the queue of its stream."""

    request_id: str
    index: int
    queue: Queue
    is_answered: bool = False  # the last output is in the queue, where it may stay unread for long

    def give(self, output: Output | Exception) -> None:
        self.queue.put_nowait((self.index, output))
        self.is_answered |= isinstance(output, Exception) or output.finish_reason is not None


class Waiters:
    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._requests: dict[int, Waiter] = {}  # until their stream is closed
        self._statistics: dict[int, asyncio.Future[Statistics]] = {}

    def add(self, request_ids: Sequence[str]) -> tuple[list[int], Queue]:
        """Registers requests that share a queue; to be removed when the queue is no longer read."""
        queue: Queue = asyncio.Queue()
        numbers = [next(self._numbers) for _ in request_ids]
        for index, (number, request_id) in enumerate(zip(numbers, request_ids, strict=True)):
            self._requests[number] = Waiter(request_id, index, queue)
        return numbers, queue

    def remove(self, number: int) -> None:
        del self._requests[number]

    def ask(self) -> tuple[int, asyncio.Future[Statistics]]:
        """Registers a question for statistics; to be forgotten afterwards."""
        number = next(self._numbers)
        answer: asyncio.Future[Statistics] = asyncio.get_running_loop().create_future()
        self._statistics[number] = answer
        return number, answer

    def forget(self, number: int) -> None:
        del self._statistics[number]

    def unanswered(self) -> list[str]:
        """Returns the names of the requests whose last output has not arrived."""
        return [waiter.request_id for waiter in self._requests.values() if not waiter.is_answered]

    def is_awaited(self) -> bool:
        """Returns whether anybody waits for a message of the engine."""
        return bool(self.unanswered() or self._statistics)

    def hand_out(self, message: Step | Rejected | StatisticsAnswer) -> None:
        """Delivers to the readers that are still registered."""
        match message:
            case Step():
                for output in message.outputs:
                    self._give(output.number, output)
            case Rejected():
                self._give(message.number, error_of(message))
            case StatisticsAnswer():
                answer = self._statistics.get(message.number)
                if answer is not None and not answer.done():  # done: its reader was cancelled
                    answer.set_result(message.statistics)

    def fail_all(self, error: EngineDied) -> None:
        for waiter in self._requests.values():
            waiter.give(error.copy())
        for answer in self._statistics.values():
            if not answer.done():
                answer.set_exception(error.copy())

    def _give(self, number: int, output: Output | Exception) -> None:
        if (waiter := self._requests.get(number)) is not None:
            waiter.give(output)


class OutputStream:
    """Outputs of requests that were submitted together; a request is known by its index among them."""

    def __init__(self, numbers: Sequence[int], queue: Queue, send: Callable[[Cancel], None]) -> None:
        self._unfinished = dict(enumerate(numbers))  # index -> number of requests whose last output was not taken
        self._finishing: set[int] = set()  # indices of those that `finish` was called for
        self._queue = queue
        self._send = send
        self._failure: Exception | None = None

    async def take(self) -> dict[int, list[Output]]:
        """Waits for outputs and returns all that have arrived, by index; {} once every request has ended.

        A slow reader therefore gets several at once. The last output of a request has a finish reason. Raises
        RequestError if a request can never run, EngineDied if the engine died.
        """
        outputs: dict[int, list[Output]] = {}
        while self._failure is None and self._unfinished and not (outputs and self._queue.empty()):
            index, output = await self._queue.get()
            if isinstance(output, Exception):
                self._failure = output
                self._unfinished.pop(index, None)
                break
            if output.finish_reason is not None:
                del self._unfinished[index]
            outputs.setdefault(index, []).append(output)
        if self._failure is not None and not outputs:
            raise self._failure
        return outputs

    def finish(self, index: int) -> None:
        """Ends a request whose reader found the end itself, as at a stop string.

        A last output with statistics follows. Does nothing if the request has ended or was finished before.
        """
        if index in self._unfinished and index not in self._finishing:
            self._finishing.add(index)
            self._send(Cancel(number=self._unfinished[index], finished=True))

    def fail(self, error: Exception) -> None:
        """Makes `take` raise an error, unless every request has ended."""
        if self._unfinished:
            self._failure = self._failure or error
            with suppress(asyncio.QueueFull):  # nobody waits at a full queue
                self._queue.put_nowait((NO_REQUEST, error))

    def cancel(self) -> None:
        """Ends all requests that have not ended."""
        for number in self._unfinished.values():
            self._send(Cancel(number=number, finished=False))
        self._unfinished.clear()

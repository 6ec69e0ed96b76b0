"""Calls functions in separate processes, so that a crash affects only its own call."""

from __future__ import annotations

import multiprocessing
import queue
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Died:
    """Stands for the result of a call that ended its process."""

    reason: str


class Worker:
    """A process that starts with the first call, and again with the next call after it died or was stopped."""

    def __init__(self) -> None:
        self._running: tuple[Any, Connection] | None = None

    def call(self, function: Callable[..., R], *args: Any) -> R | Died:
        """Calls the function in the process; it travels by name, the arguments and the result by value (pickle)."""
        process, pipe = self._running = self._running or _begin()
        try:
            pipe.send((function, args))
            result: R = pipe.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            process.join()
            self.stop()
            return Died(_last_words(process.exitcode))
        return result

    def stop(self) -> None:
        if self._running is not None:
            process, pipe = self._running
            pipe.close()
            process.terminate()
            process.join()
            self._running = None


def call_apart(function: Callable[[T], R], items: Sequence[T], workers: int) -> Iterator[R | Died]:
    """Yields function(item) for each item, in their order, computed by up to `workers` processes at once."""
    idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    pool = [Worker() for _ in range(min(workers, len(items)))]
    for worker in pool:
        idle.put(worker)

    def call(item: T) -> R | Died:
        worker = idle.get()
        try:
            return worker.call(function, item)
        finally:
            idle.put(worker)

    threads = ThreadPoolExecutor(max(1, len(pool)))
    try:
        yield from threads.map(call, items)
    finally:
        threads.shutdown(cancel_futures=True)
        for worker in pool:
            worker.stop()


def _begin() -> tuple[Any, Connection]:
    spawn = multiprocessing.get_context("spawn")  # a fork would inherit torch's threads in an unknown state
    here, there = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(there,), daemon=True)
    process.start()
    there.close()
    return process, here


def _serve(pipe: Connection) -> None:
    """Answers calls until the other end is closed, or the user interrupts all processes."""
    with suppress(KeyboardInterrupt):
        while True:
            try:
                function, args = pipe.recv()
            except EOFError:
                return
            pipe.send(function(*args))


def _last_words(exit_code: int) -> str:
    if exit_code >= 0:
        return f"its process ended with exit code {exit_code}"
    return f"its process was ended by {signal.Signals(-exit_code).name}"

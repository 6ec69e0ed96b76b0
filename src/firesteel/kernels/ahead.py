"""Compiles kernels before they are launched, many at a time, and tells of those compiled later; knows no kernel.

with compile_ahead() as ahead:
    model.forward(...)          # launches nothing: each kernel that it would launch is being compiled
    ahead.wait(progress)

Compilers run in threads: they leave Python to others for nearly all of their time.
"""
# mypy: disable-error-code="import-untyped,import-not-found"

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

Progress = Callable[[int, int], None]  # done, in all
Listener = Callable[[str], None]  # is told the name of a kernel


class Ahead:
    def __init__(self, threads: ThreadPoolExecutor, mode: Any) -> None:
        """`mode` is Triton's own way to compile in threads, and is entered."""
        self._threads = threads
        self._mode = mode
        self._cuda: dict[tuple[int, str], Future[Any]] = {}  # by source and target
        self._sources: list[Any] = []  # keeps their ids from being given to others

    def add_triton(
        self, kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        """Has what such a launch needs compiled, unless it is under way."""
        kernel.warmup(*args, grid=grid, **options)

    def add_cuda(self, source: Any, target: str) -> None:
        """The same for CUDA C++."""
        key = (id(source), target)
        if key not in self._cuda:
            self._sources.append(source)
            self._cuda[key] = self._threads.submit(source.build, target)

    def __len__(self) -> int:
        """Kernels so far."""
        return len(self._mode.raw_futures) + len(self._cuda)

    def wait(self, progress: Progress | None = None) -> None:
        """Until all are compiled. What fails to compile fails again, with its reason, when it is launched."""
        for done, _ in enumerate(as_completed([*self._mode.raw_futures, *self._cuda.values()]), start=1):
            if progress is not None:
                progress(done, len(self))


_current: ContextVar[Ahead | None] = ContextVar("what is compiled ahead", default=None)


def current_ahead() -> Ahead | None:
    """What launches are to be handed to in place of being made; None: they are made."""
    return _current.get()


@contextmanager
def compile_ahead(workers: int | None = None) -> Iterator[Ahead]:
    """Inside it no kernel of ours is launched, and results of ops are not numbers. Its end waits for all."""
    from triton import AsyncCompileMode

    threads = ThreadPoolExecutor(workers or len(os.sched_getaffinity(0)))
    with threads, AsyncCompileMode(threads, ignore_errors=True) as mode:
        ahead = Ahead(threads, mode)
        token = _current.set(ahead)
        try:
            yield ahead
        finally:
            _current.reset(token)


_listeners: list[Listener] = []


def tell_built(name: str) -> None:
    """That a kernel was compiled, or found compiled on disk, at its first use in this process."""
    for listener in list(_listeners):
        listener(name)


def listen(listener: Listener) -> Callable[[], None]:
    """Has `listener` told of every kernel that is built from now on; returns what ends that."""
    _hook_triton()
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)


def _hook_triton() -> None:
    """Once a process; a hook that is there stays."""
    from triton import knobs

    before = knobs.runtime.jit_post_compile_hook
    if getattr(before, "tells_built", False):
        return

    def tell(**facts: Any) -> Any:
        tell_built(facts["fn"].name)
        return None if before is None else before(**facts)

    tell.tells_built = True  # type: ignore[attr-defined]
    knobs.runtime.jit_post_compile_hook = tell

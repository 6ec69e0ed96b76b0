"""Compiles kernels in parallel before they are launched, and reports kernels that are compiled later.

with compile_ahead() as ahead:
    model.forward(...)          # launches nothing, but compiles each kernel that it would launch
    ahead.wait(progress)

Compilers run in threads, because they release the GIL for nearly all of their time.
"""
# mypy: disable-error-code="import-untyped,import-not-found"

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

Progress = Callable[[int, int], None]  # done, in total
Listener = Callable[[str], None]  # called with the name of a kernel


class Ahead:
    """Compilations under way, started by ops that would launch the kernels."""

    def __init__(self, threads: ThreadPoolExecutor, mode: Any) -> None:
        """Compiles in `threads`; `mode` is Triton's AsyncCompileMode, already entered."""
        self._threads = threads
        self._mode = mode
        self._cuda: dict[tuple[int, str], Future[Any]] = {}  # by source and target
        self._sources: list[Any] = []  # kept alive so that their ids stay unique

    def add_triton(
        self, kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        """Starts the compilation that this Triton launch needs, unless it is under way."""
        kernel.warmup(*args, grid=grid, **options)

    def add_cuda(self, source: Any, target: str) -> None:
        """Starts the compilation of a CUDA C++ source for `target`, unless it is under way."""
        key = (id(source), target)
        if key not in self._cuda:
            self._sources.append(source)
            self._cuda[key] = self._threads.submit(source.build, target)

    def __len__(self) -> int:
        """Returns the number of kernels so far."""
        return len(self._mode.raw_futures) + len(self._cuda)

    def wait(self, progress: Progress | None = None) -> None:
        """Waits until all are compiled. A kernel that fails to compile raises its error when it is launched."""
        for done, _ in enumerate(as_completed([*self._mode.raw_futures, *self._cuda.values()]), start=1):
            if progress is not None:
                progress(done, len(self))


_current: ContextVar[Ahead | None] = ContextVar("current_ahead", default=None)


def current_ahead() -> Ahead | None:
    """Returns the object that takes kernels instead of a launch, or None if kernels are launched."""
    return _current.get()


@contextmanager
def compile_ahead(workers: int | None = None) -> Iterator[Ahead]:
    """Compiles instead of launching: in its body, results of ops are undefined; its end waits for all kernels."""
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
    """Tells the listeners that a kernel was compiled, or read from disk, at its first use in this process."""
    for listener in list(_listeners):
        listener(name)


def listen(listener: Listener) -> Callable[[], None]:
    """Calls `listener` for every kernel built from now on; returns the function that removes it."""
    _hook_triton()
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)


def _hook_triton() -> None:
    """Installs our hook once per process; it calls a hook that was there before."""
    from triton import knobs

    before = knobs.runtime.jit_post_compile_hook
    if getattr(before, "tells_built", False):
        return

    def tell(**facts: Any) -> Any:
        tell_built(facts["fn"].name)
        return None if before is None else before(**facts)

    tell.tells_built = True  # type: ignore[attr-defined]
    knobs.runtime.jit_post_compile_hook = tell

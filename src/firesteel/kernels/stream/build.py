"""Builds of the decode kernels (plain, with delays, for racecheck), each compiled once per shape, and their launch.

A build is a define that csrc/primitives.cuh reads. Tests and tools choose one with `with_delays` or
`with_all_arriving`; plans made inside such a block are kept apart from those of other builds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

import torch

from firesteel.kernels.ahead import current_ahead
from firesteel.kernels.cuda.source import CudaKernel, CudaSource
from firesteel.kernels.target import find_target

P = ParamSpec("P")
R = TypeVar("R")
PLAIN, DELAYS, ALL_ARRIVE = "", "DELAYS", "ALL_ARRIVE"  # the define of each build; the plain one has none
_build: ContextVar[str] = ContextVar("the build of kernels", default=PLAIN)


@contextmanager
def _built(build: str) -> Iterator[None]:
    token = _build.set(build)
    try:
        yield
    finally:
        _build.reset(token)


def with_delays() -> AbstractContextManager[None]:
    """Makes kernels launched inside sleep for random times, so that tests see an order that is only likely."""
    return _built(DELAYS)


def with_all_arriving() -> AbstractContextManager[None]:
    """Makes all lanes of a warp arrive at barriers where otherwise one lane arrives for its warp.

    For racecheck, which takes an arrival to order the accesses of the arriving lane alone. All warps also wait at a
    cluster's barrier where otherwise one would: racecheck never lets a single warp through.
    """
    return _built(ALL_ARRIVE)


_kept: list[Callable[[], None]] = []


def keep(plan: Callable[P, R]) -> Callable[P, R]:
    """Caches a plan by its arguments and the current build, so that a call of an op plans nothing again."""
    plans = {build: functools.cache(plan) for build in (PLAIN, DELAYS, ALL_ARRIVE)}
    _kept.extend(cached.cache_clear for cached in plans.values())

    @functools.wraps(plan)
    def look_up(*args: P.args, **kwargs: P.kwargs) -> R:
        planned: R = plans[_build.get()](*args, **kwargs)  # type: ignore[arg-type]
        return planned

    return look_up


def forget_plans() -> None:
    """Clears all kept plans, for tools that change what plans are made from."""
    for clear in _kept:
        clear()


def build_kernel(name: str, defines: Mapping[str, int | str], *, threads: int, shared_bytes: int = 0) -> CudaKernel:
    """Returns the kernel of csrc/NAME.cu in the current build; nothing is compiled yet."""
    build = {_build.get(): 1} if _build.get() else {}
    source = _source(f"{name}.cu", tuple(sorted({**defines, **build}.items())))
    return source.kernel(name, threads=threads, shared_bytes=shared_bytes)


@functools.cache
def _source(name: str, defines: tuple[tuple[str, int | str], ...]) -> CudaSource:
    return CudaSource(name, defines=dict(defines))


def launch(
    kernel: CudaKernel,
    grid: tuple[int, ...],
    args: tuple[Any, ...],
    dependent: bool,
    *,
    cluster: tuple[int, ...] = (),
    tile: object = "",
) -> None:
    """Launches the kernel once, or only starts its compilation inside `compile_ahead`.

    With `dependent` it may begin before the kernel ahead of it in the stream has ended (programmatic dependent
    launch). The kernel itself waits before it reads results of that one, unless its op's contract says otherwise.
    """
    if (ahead := current_ahead()) is not None:
        ahead.add_cuda(kernel.source, find_target(torch.cuda.get_device_capability()))
        return
    kernel.launch(grid=grid, args=args, dependent=dependent, cluster=cluster, tile=tile)

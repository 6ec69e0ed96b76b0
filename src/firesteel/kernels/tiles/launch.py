"""Launches Triton kernels and notes them in the ledger.

Triton binds and specialises the arguments of every launch again, which takes longer than many kernels. Only the
first launch with given constants, types and numbers goes through Triton; later ones call the compiled kernel.
"""
# mypy: disable-error-code="import-untyped,import-not-found"

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from firesteel.kernels.ahead import current_ahead
from firesteel.kernels.ledger import Launch, note
from firesteel.kernels.tiles.tuned import change_options, options_revision

MOST_ROWS_OF_GRID = 65_535  # CUDA's limit for all dimensions of a grid but the first
ALIGNMENT = 16  # bytes; Triton compiles other code for a pointer that is not a multiple of it
MOST_PLANS = 8192  # bounds what is kept when numbers never repeat


class _Plan(NamedTuple):
    """A compiled kernel and what its launches have in common."""

    kernel: Any  # kept alive so that its id stays unique
    run: Any
    function: Any
    metadata: Any
    constants: tuple[Any, ...]  # of the parameters after the positional ones
    launch: Launch


class _Triton(NamedTuple):
    driver: Any
    knobs: Any
    compiled: type


_plans: dict[tuple[Any, ...], _Plan] = {}


def launch_kernel(kernel: Any, grid: tuple[int, ...], *args: Any, tile: object = "", **options: Any) -> None:
    """Launches on the current stream of the current device.

    `tile` is shown in the ledger for kernels that have several. Triton's interpreter compiles nothing.
    """
    if (ahead := current_ahead()) is not None:
        ahead.add_triton(kernel, grid, args, change_options(kernel.__name__, options))
        return
    if kernel.__class__.__name__ != "JITFunction":
        note(_launch(kernel, grid, args, tile, options)[0])
        return
    triton = _find_triton()
    driver = triton.driver.active
    device = driver.get_current_device()
    key: list[Any] = [id(kernel), device, options_revision(), tile, tuple(options), tuple(options.values())]
    values: list[Any] = []
    addresses, is_plain = 0, True
    for arg in args:
        kind = type(arg)
        if kind is Tensor:
            address = arg.data_ptr()
            addresses |= address
            key.append(arg.dtype)
            key.append(arg.get_device())
            values.append(address)
        elif kind is float:
            key.append(float)  # its value is never compiled in
            values.append(arg)
        elif kind is int or arg is None:
            key.append(arg)
            values.append(arg)
        else:
            is_plain = False
    is_plain = is_plain and not addresses % ALIGNMENT and not _must_see(kernel, triton.knobs.runtime)
    known_by = tuple(key)
    plan = _plans.get(known_by) if is_plain else None
    if plan is None:
        launch, used = _launch(kernel, grid, args, tile, options)
        if is_plain and isinstance(launch.compiled, triton.compiled):
            _keep(known_by, kernel, launch, len(args), used)
    else:
        x, y, z = (*grid, 1, 1)[:3]
        stream = driver.get_current_stream(device)
        plan.run(x, y, z, stream, plan.function, plan.metadata, None, None, None, *values, *plan.constants)
        launch = plan.launch
    note(launch)


def _launch(
    kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], tile: object, options: dict[str, Any]
) -> tuple[Launch, dict[str, Any]]:
    """Launches as Triton does; returns what ran and with which options."""
    name = kernel.__name__
    used = change_options(name, options)
    compiled = kernel[grid](*args, **used)
    label = str(tile) if used is options else f"{tile} tuned"
    return Launch(name, label, "interpreted" if compiled is None else compiled.hash, compiled), used


def _keep(key: tuple[Any, ...], kernel: Any, launch: Launch, num_args: int, options: Mapping[str, Any]) -> None:
    names = kernel.arg_names[num_args:]
    if not all(name in options for name in names):
        return  # an argument has a default, which Triton fills in
    if len(_plans) >= MOST_PLANS:
        _plans.clear()
    compiled = launch.compiled
    constants = tuple(options[name] for name in names)
    _plans[key] = _Plan(kernel, compiled.run, compiled.function, compiled.packed_metadata, constants, launch)


def _must_see(kernel: Any, runtime: Any) -> bool:
    """Returns whether Triton must see the launch: for a profiler's hooks, or to compile other code."""
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    return bool(
        (enter is not None and getattr(enter, "calls", True))
        or (leave is not None and getattr(leave, "calls", True))
        or kernel.pre_run_hooks
        or runtime.debug
        or runtime.add_stages_inspection_hook is not None
    )


@functools.cache
def _find_triton() -> _Triton:
    from triton import knobs
    from triton.compiler import CompiledKernel
    from triton.runtime import driver

    return _Triton(driver, knobs, CompiledKernel)


def divide_up(count: int, size: int) -> int:
    """Returns how many tiles of `size` hold `count`."""
    return -(-count // size)


def power_of_two(count: int) -> int:
    """Returns the least power of two that is not below `count`."""
    return 1 << (count - 1).bit_length()

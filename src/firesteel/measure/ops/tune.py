"""Finds faster tiles and launch options of Triton kernels by measuring them; knows no engine and no file.

For each op at each M: first the tiles that its `tile` argument takes, then, for every kernel that it launches so,
options of the launch, one after the other, over all M that launch the same. What gives other results is not taken.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from firesteel.device import DeviceSpec
from firesteel.errors import KernelError, UserError
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.op.op import Op
from firesteel.kernels.op.tolerance import assert_close
from firesteel.kernels.operands.weights import Experts, Mxfp4Weight
from firesteel.kernels.ops.attention import attention
from firesteel.kernels.ops.linear import linear
from firesteel.kernels.ops.moe_matmul import moe_matmul
from firesteel.kernels.ops.route import route
from firesteel.kernels.proof.verify import has_failed, kernel_faults
from firesteel.kernels.tiles.tile_pin import AUTO, refuse_tile
from firesteel.kernels.tiles.tuned import VARIED, Options, Tuned, tile_key, using_options, watch_options
from firesteel.measure.ops.bench import LEAST_CALLS, draw_inputs
from firesteel.measure.ops.workloads import OpWorkload
from firesteel.measure.timing import time_calls

OPS: tuple[Op[Any, Any], ...] = (moe_matmul, linear, attention, route)
GAIN = 0.98  # of the time: less is noise
ROWS, COLUMNS = (16, 32, 64, 128, 256), (64, 128, 256)
Clock = Callable[[Callable[..., object], Sequence[tuple[Any, ...]]], float]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningChoice:
    """One choice that was measured: seconds before, with those chosen before it, and as chosen."""

    what: str
    m: tuple[int, ...]
    chosen: str
    before_s: float
    chosen_s: float

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("what", "m", "chosen", "before_s", "chosen_s")}


@dataclass(slots=True)
class TuningCase:
    """An op with arguments for M tokens, and the tile that it is called with."""

    workload: OpWorkload
    run: Callable[..., object]
    inputs: list[tuple[Any, ...]]
    expected: object = None
    tile: str = AUTO

    @property
    def tile_at(self) -> int | None:
        """Which argument the tile is, of an op that takes one."""
        names = list(inspect.signature(self.workload.op.reference).parameters)
        return names.index("tile") if "tile" in names else None

    def call(self, *args: Any) -> object:
        at = self.tile_at
        return self.run(*args) if at is None else self.run(*args[:at], self.tile, *args[at + 1 :])


@dataclass(slots=True)
class Tuner:
    device: DeviceSpec
    clock: Clock
    tiles: dict[str, dict[int, str]] = field(default_factory=dict)
    options: dict[str, Options] = field(default_factory=dict)
    found: list[TuningChoice] = field(default_factory=list)
    earlier: Tuned = field(default_factory=Tuned)
    settled: set[str | tuple[str, int]] = field(default_factory=set)  # launches, and tiles of M tokens

    @property
    def tuned(self) -> Tuned:
        """What was found, beside what `earlier` has of tiles and launches that were not measured this time."""
        tiles = {
            key: {m: tile for m, tile in sizes.items() if (key, m) not in self.settled}
            for key, sizes in self.earlier.tiles.items()
        }
        for key, sizes in self.tiles.items():
            tiles[key] = {**tiles.get(key, {}), **sizes}
        options = {key: one for key, one in self.earlier.options.items() if key not in self.settled}
        return Tuned({key: sizes for key, sizes in tiles.items() if sizes}, {**options, **self.options})

    def tune(self, op: Op[Any, Any], workloads: Sequence[OpWorkload], tick: Callable[[], None]) -> None:
        """All of one op; `tick` is called once for each workload and launch that is settled."""
        run = op.choose(self.device, None, Ledger())
        cases = [TuningCase(one, run, draw_inputs(one, self.device)) for one in workloads]
        for case in cases:
            case.expected = case.call(*case.inputs[0])
            if (key := shape_key(case)) is not None:
                self._choose_tile(case, key)
            tick()
        for key, (options, users) in self._launched(cases).items():
            self._choose_options(key, options, users)
            tick()

    def _choose_tile(self, case: TuningCase, key: str) -> None:
        times = {AUTO: self._time([case])}
        for tile in list_tiles(case.workload.m):
            case.tile = tile
            times[tile] = self._time([case])
        case.tile = best = pick(times, AUTO)
        self.settled.add((key, case.workload.m))
        if best != AUTO:
            self.tiles.setdefault(key, {})[case.workload.m] = best
        self._note(f"{key} tile", [case], best, times[AUTO], times[best])

    def _launched(self, cases: Sequence[TuningCase]) -> dict[str, tuple[Options, list[TuningCase]]]:
        """By key: the options of each kernel that can vary, and who launches it so."""
        launched: dict[str, tuple[Options, list[TuningCase]]] = {}
        for case in cases:
            with watch_options() as seen:
                case.call(*case.inputs[0])
            for key, options in seen.items():
                if key.split()[0] in VARIED:
                    launched.setdefault(key, (options, []))[1].append(case)
        return launched

    def _choose_options(self, key: str, shipped: Options, cases: Sequence[TuningCase]) -> None:
        """One option after the other, each from the best so far; other launches stay as they were chosen."""
        best: dict[str, Any] = {}
        with using_options(self.options):
            first = best_s = self._time(cases)
        for name, values in VARIED[key.split()[0]].items():
            for value in (one for one in values if one != shipped.get(name)):
                with using_options({**self.options, key: {**best, name: value}}):
                    seconds = self._time(cases)
                if seconds < GAIN * best_s:
                    best, best_s = {**best, name: value}, seconds
        self.settled.add(key)
        if best:
            self.options[key] = best
        chosen = ", ".join(f"{name}={value}" for name, value in best.items())
        self._note(key, cases, chosen or "as shipped", first, best_s)

    def _time(self, cases: Sequence[TuningCase]) -> float:
        """The geometric mean over the cases; infinite where one fails or gives something else."""
        faults: tuple[type[Exception], ...] = (KernelError, AssertionError, *kernel_faults())
        try:
            for case in cases:
                actual = case.call(*case.inputs[0])
                assert_close(actual=actual, expected=case.expected, tolerance=case.workload.op.tolerance)
            times = [self.clock(case.call, case.inputs) for case in cases]
        except faults as error:
            if has_failed(self.device):
                raise UserError(f"a candidate broke the GPU, start again without it: {error}") from error
            return math.inf
        return math.exp(sum(map(math.log, times)) / len(times))

    def _note(self, what: str, cases: Sequence[TuningCase], chosen: str, before_s: float, chosen_s: float) -> None:
        ms = tuple(sorted({case.workload.m for case in cases}))
        self.found.append(TuningChoice(what=what, m=ms, chosen=chosen, before_s=before_s, chosen_s=chosen_s))


def tune_ops(
    workloads: Mapping[str, Sequence[OpWorkload]],
    device: DeviceSpec,
    *,
    clock: Clock | None = None,
    progress: Progress | None = None,
    keep: Callable[[Tuned], None] | None = None,
    earlier: Tuned | None = None,
) -> Tuner:
    """`workloads` by op: what it found, with all that was measured. Each counts twice in `progress`, about.

    `keep` is given what was found so far whenever an op is done: whoever is stopped later loses one op. What
    `earlier` has of anything else stays.
    """
    tuner = Tuner(device, clock or functools.partial(measure, device), earlier=earlier or Tuned())
    steps, total = itertools.count(1), 2 * sum(map(len, workloads.values()))

    def tick() -> None:
        if progress is not None:
            progress(min(next(steps), total), total)

    for some in workloads.values():
        if some:
            tuner.tune(some[0].op, some, tick)
        if keep is not None:
            keep(tuner.tuned)
    return tuner


def measure(device: DeviceSpec, function: Callable[..., object], inputs: Sequence[tuple[Any, ...]]) -> float:
    return time_calls(function, inputs, device, rounds=-(-LEAST_CALLS // len(inputs))).median_s


def pick(times: Mapping[str, float], shipped: str) -> str:
    """The fastest, or what is shipped where that is hardly slower."""
    best = min(times, key=lambda one: times[one])
    return best if times[best] < GAIN * times[shipped] else shipped


def list_tiles(m: int) -> Iterator[str]:
    """Those that so many tokens do not leave nearly empty."""
    for rows, columns in itertools.product(ROWS, COLUMNS):
        if rows <= max(ROWS[0], 2 * m) and refuse_tile(f"{rows}x{columns}") is None:
            yield f"{rows}x{columns}"


def shape_key(case: TuningCase) -> str | None:
    """Of the weight, where it is MXFP4 and the op takes a tile."""
    if case.tile_at is None:
        return None
    shape = mxfp4_shape(case.inputs[0])
    return None if shape is None else tile_key(case.workload.op.name, case.workload.activation, shape)


def mxfp4_shape(args: Sequence[Any]) -> tuple[int, ...] | None:
    for arg in args:
        if isinstance(arg, Experts):
            experts, hidden, half = arg.down_codes.shape
            return experts, hidden, 2 * half
        if isinstance(arg, Mxfp4Weight):
            return arg.shape
    return None

"""Finds faster tiles and launch options of Triton kernels by measuring them.

For each op, first the values of its operand `tile` are tried at each M, then the launch options of every kernel it
launches, one option after the other, over all M that share the launch. A candidate with wrong results is rejected.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from firesteel.device import DeviceSpec
from firesteel.errors import KernelError, UserError
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.op.op import Op
from firesteel.kernels.op.operands import TiledOperands
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
GAIN = 0.98  # largest share of the previous time that counts as faster; the rest is noise
ROWS, COLUMNS = (16, 32, 64, 128, 256), (64, 128, 256)
Clock = Callable[[Callable[..., object], Sequence[tuple[Any, ...]]], float]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningChoice:
    """A measured choice: seconds with all earlier choices, and seconds with this one as well."""

    what: str
    m: tuple[int, ...]
    chosen: str
    before_s: float
    chosen_s: float

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("what", "m", "chosen", "before_s", "chosen_s")}


@dataclass(slots=True)
class TuningCase:
    """An op with arguments for M tokens and the tile to call it with."""

    workload: OpWorkload
    run: Callable[..., object]
    inputs: list[tuple[Any, ...]]
    expected: object = None
    tile: str = AUTO

    @property
    def takes_tile(self) -> bool:
        return isinstance(self.inputs[0][0], TiledOperands)

    def call(self, *args: Any) -> object:
        return self.run(replace(args[0], tile=self.tile)) if self.takes_tile else self.run(*args)


@dataclass(slots=True)
class Tuner:
    device: DeviceSpec
    clock: Clock
    tiles: dict[str, dict[int, str]] = field(default_factory=dict)
    options: dict[str, Options] = field(default_factory=dict)
    choices: list[TuningChoice] = field(default_factory=list)
    earlier: Tuned = field(default_factory=Tuned)
    settled: set[str | tuple[str, int]] = field(default_factory=set)  # measured launches and (shape, M) tiles

    @property
    def tuned(self) -> Tuned:
        """All choices, together with those of `earlier` that were not measured again."""
        tiles = {
            key: {m: tile for m, tile in sizes.items() if (key, m) not in self.settled}
            for key, sizes in self.earlier.tiles.items()
        }
        for key, sizes in self.tiles.items():
            tiles[key] = {**tiles.get(key, {}), **sizes}
        options = {key: kept for key, kept in self.earlier.options.items() if key not in self.settled}
        return Tuned({key: sizes for key, sizes in tiles.items() if sizes}, {**options, **self.options})

    def tune(self, op: Op[Any, Any], workloads: Sequence[OpWorkload], tick: Callable[[], None]) -> None:
        """Tunes one op; `tick` is called once per settled workload and launch."""
        run = op.choose(self.device, None, Ledger())
        cases = [TuningCase(workload, run, draw_inputs(workload, self.device)) for workload in workloads]
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
        """Returns the options of each tunable launch and the cases that make it, keyed by launch."""
        launched: dict[str, tuple[Options, list[TuningCase]]] = {}
        for case in cases:
            with watch_options() as seen:
                case.call(*case.inputs[0])
            for key, options in seen.items():
                if key.split()[0] in VARIED:
                    launched.setdefault(key, (options, []))[1].append(case)
        return launched

    def _choose_options(self, key: str, shipped: Options, cases: Sequence[TuningCase]) -> None:
        """Varies one option after the other, starting from the best so far; other launches keep their choices."""
        best: dict[str, Any] = {}
        with using_options(self.options):
            first = best_s = self._time(cases)
        for name, values in VARIED[key.split()[0]].items():
            for value in (value for value in values if value != shipped.get(name)):
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
        """Returns the geometric mean over the cases; infinity if one fails or gives wrong results."""
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
        self.choices.append(TuningChoice(what=what, m=ms, chosen=chosen, before_s=before_s, chosen_s=chosen_s))


def tune_ops(
    workloads: Mapping[str, Sequence[OpWorkload]],
    device: DeviceSpec,
    *,
    clock: Clock | None = None,
    progress: Progress | None = None,
    keep: Callable[[Tuned], None] | None = None,
    earlier: Tuned | None = None,
) -> Tuner:
    """Tunes the ops of `workloads`, which is keyed by op; each workload counts about twice in `progress`.

    `keep` receives the choices so far after each op, so that an interruption loses one op at most. Choices of
    `earlier` for anything else are kept.
    """
    tuner = Tuner(device, clock or functools.partial(measure, device), earlier=earlier or Tuned())
    steps, total = itertools.count(1), 2 * sum(map(len, workloads.values()))

    def tick() -> None:
        if progress is not None:
            progress(min(next(steps), total), total)

    for op_workloads in workloads.values():
        if op_workloads:
            tuner.tune(op_workloads[0].op, op_workloads, tick)
        if keep is not None:
            keep(tuner.tuned)
    return tuner


def measure(device: DeviceSpec, function: Callable[..., object], inputs: Sequence[tuple[Any, ...]]) -> float:
    return time_calls(function, inputs, device, rounds=-(-LEAST_CALLS // len(inputs))).median_s


def pick(times: Mapping[str, float], shipped: str) -> str:
    """Returns the fastest candidate, or the shipped one if it is hardly slower."""
    best = min(times, key=lambda candidate: times[candidate])
    return best if times[best] < GAIN * times[shipped] else shipped


def list_tiles(m: int) -> Iterator[str]:
    """Lists the tiles that M tokens do not leave nearly empty."""
    for rows, columns in itertools.product(ROWS, COLUMNS):
        if rows <= max(ROWS[0], 2 * m) and refuse_tile(f"{rows}x{columns}") is None:
            yield f"{rows}x{columns}"


def shape_key(case: TuningCase) -> str | None:
    """Returns the key of the weight's shape, if it is MXFP4 and the op takes a tile."""
    if not case.takes_tile:
        return None
    shape = mxfp4_shape(case.inputs[0][0])
    return None if shape is None else tile_key(case.workload.op.name, case.workload.activation, shape)


def mxfp4_shape(operands: TiledOperands) -> tuple[int, ...] | None:
    """Returns the shape of the packed weights, if there are any."""
    for value in (getattr(operands, part.name) for part in fields(operands)):
        if isinstance(value, Experts):
            experts, hidden, half = value.down_codes.shape
            return experts, hidden, 2 * half
        if isinstance(value, Mxfp4Weight):
            return value.shape
    return None

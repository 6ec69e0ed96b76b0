"""The ways to run a decoding step: eager or as a graph, with dependent launch or without; knows no kernel.

All must give the same bits; `compare_variants` says where they do not.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from firesteel.config import KernelConfig
from firesteel.device import DeviceSpec
from firesteel.errors import KernelError
from firesteel.kernels.stream.launch import with_delays
from firesteel.measure.decode.steps import Call, Run, time_steps, trace, watch
from firesteel.model.decode import DecodeStep
from firesteel.model.decode_ops import GROUPS
from firesteel.model.graphs import StepGraph


@dataclass(frozen=True, slots=True)
class StepVariant:
    graph: bool
    dependent: bool

    def __str__(self) -> str:
        launch = "dependent launch" if self.dependent else "plain launch"
        return f"{'CUDA graph' if self.graph else 'eager'}, {launch}"

    def open(self, step: DecodeStep, device: DeviceSpec) -> Run:
        """Runs `step` once a call, from its present inputs on."""
        step.dependent = self.dependent
        return capture(step.run, step, device) if self.graph else step.run


def list_variants(device: DeviceSpec, config: KernelConfig) -> list[StepVariant]:
    """From the plainest to the one that the settings choose, a gate at a time. A CPU has the plainest only."""
    ways = [StepVariant(False, False)]
    if config.cuda_graphs and device.is_cuda:
        ways.append(StepVariant(True, False))
    if config.dependent_launch and device.is_cuda:
        ways.append(StepVariant(ways[-1].graph, True))
    return ways


def capture(run: Run, step: DecodeStep, device: DeviceSpec) -> Run:
    """The inputs of `step` are afterwards what they were."""
    return StepGraph(run, step.model.kernels.ledger, device, undo=undoer(step)).replay


def undoer(step: DecodeStep) -> Callable[[], None]:
    """Puts back the inputs that `step` has now."""
    begin = step.inputs.copy()
    return lambda: step.inputs.restore(begin)


def compare_variants(
    step: DecodeStep, ways: Sequence[StepVariant], device: DeviceSpec, num_steps: int, *, delays: bool = False
) -> None:
    """Raises unless each gives what the first gave, and a single one the same twice; inputs are put back.

    With `delays` all are run once more, by kernels that dawdle at random.
    """
    expected = trace(step, ways[0].open(step, device), num_steps)

    def compare(others: Sequence[StepVariant], how: str) -> None:
        for way in others:
            found = trace(step, way.open(step, device), num_steps)
            if difference := expected.difference(found):
                raise KernelError(f"{ways[0]} and {way}{how} differ over {num_steps} steps: {difference}")

    compare(ways[1:] or ways, "")
    if delays:
        with with_delays():
            compare(ways, " with delays")


def time_groups(step: DecodeStep, way: StepVariant, device: DeviceSpec, *, steps: int) -> dict[str, float]:
    """Milliseconds a step: a group's calls of all layers one after the other, nothing between them.

    What is called once a step is repeated as often as there are layers, or a graph's own launch would count most.
    """
    reset, step.dependent = undoer(step), way.dependent
    calls = watch(step)
    found = {}
    for group in filter(calls.get, GROUPS):
        reset()
        times = step.model.spec.num_layers // len(calls[group])
        run = repeat(calls[group] * times)
        timed = capture(run, step, device) if way.graph else run
        found[group] = statistics.median(time_steps(timed, reset, device, steps=steps)) / times
    reset()
    return found


def repeat(calls: Sequence[Call]) -> Run:
    """As in a step, the first waits for all that ran before it."""

    def run() -> None:
        calls[0].again(dependent=False)
        for call in calls[1:]:
            call.again()

    return run

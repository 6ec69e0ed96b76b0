"""Variants of a decoding step: eager or as a CUDA graph, with dependent launch or without.

All variants must give the same bits; `compare_variants` names the first difference.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from firesteel.config import KernelConfig
from firesteel.device import DeviceSpec
from firesteel.errors import KernelError
from firesteel.kernels.stream.build import with_delays
from firesteel.measure.decode.steps import Call, RunStep, time_steps, trace, watch
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

    def open(self, step: DecodeStep, device: DeviceSpec) -> RunStep:
        """Returns a function that runs `step` once per call, starting from its current inputs."""
        step.dependent = self.dependent
        return capture(step.run, step, device) if self.graph else step.run


def list_variants(device: DeviceSpec, config: KernelConfig) -> list[StepVariant]:
    """Lists variants from the plainest to the configured, one setting at a time; a CPU has the plainest only."""
    variants = [StepVariant(False, False)]
    if config.cuda_graphs and device.is_cuda:
        variants.append(StepVariant(True, False))
    if config.dependent_launch and device.is_cuda:
        variants.append(StepVariant(variants[-1].graph, True))
    return variants


def capture(run: RunStep, step: DecodeStep, device: DeviceSpec) -> RunStep:
    """Captures `run` as a graph and restores the inputs of `step` afterwards."""
    return StepGraph(run, step.model.kernels.ledger, device, undo=undoer(step)).replay


def undoer(step: DecodeStep) -> Callable[[], None]:
    """Returns a function that restores the current inputs of `step`."""
    begin = step.inputs.copy()
    return lambda: step.inputs.restore(begin)


def compare_variants(
    step: DecodeStep, variants: Sequence[StepVariant], device: DeviceSpec, num_steps: int, *, delays: bool = False
) -> None:
    """Raises unless all variants give the bits of the first; a single variant must repeat its own bits.

    With `delays`, all variants run once more with kernels that wait at random points. Inputs are restored.
    """
    expected = trace(step, variants[0].open(step, device), num_steps)

    def compare(others: Sequence[StepVariant], how: str) -> None:
        for variant in others:
            actual = trace(step, variant.open(step, device), num_steps)
            if difference := expected.difference(actual):
                raise KernelError(f"{variants[0]} and {variant}{how} differ over {num_steps} steps: {difference}")

    compare(variants[1:] or variants, "")
    if delays:
        with with_delays():
            compare(variants, " with delays")


def time_groups(step: DecodeStep, variant: StepVariant, device: DeviceSpec, *, steps: int) -> dict[str, float]:
    """Returns milliseconds per step of each group: its calls of all layers, back to back.

    Calls that a step makes once are repeated as often as there are layers; otherwise the launch of the graph would
    dominate their time.
    """
    reset, step.dependent = undoer(step), variant.dependent
    calls = watch(step)
    group_ms = {}
    for group in filter(calls.get, GROUPS):
        reset()
        repeats = step.model.spec.num_layers // len(calls[group])
        run = repeat(calls[group] * repeats)
        timed = capture(run, step, device) if variant.graph else run
        group_ms[group] = statistics.median(time_steps(timed, reset, device, steps=steps)) / repeats
    reset()
    return group_ms


def repeat(calls: Sequence[Call]) -> RunStep:
    """Returns a function that repeats `calls`; as in a step, the first waits for everything launched before."""
    launched = [calls[0].waiting(), *calls[1:]]

    def run() -> None:
        for call in launched:
            call.again()

    return run

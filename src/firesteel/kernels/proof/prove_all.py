"""Proves every variant of many ops for many targets, in parallel processes.

A variant that does not compile, or that crashes its compiler, becomes a Failure; the others are still proven.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from firesteel.device import GIB
from firesteel.device.host_memory import find_host_memory
from firesteel.errors import KernelError
from firesteel.kernels.op.device_code import CudaCode, DeviceCode
from firesteel.kernels.op.op import Op
from firesteel.kernels.proof.isolate import Died, call_apart
from firesteel.kernels.proof.prove import Proof, list_code, prove_code
from firesteel.kernels.proof.verify import kernel_faults
from firesteel.kernels.registry import find_op

MAX_WORKERS = 16
WORKER_BYTES = 2 * GIB  # torch, Triton and the compiler at work
FEW = 4  # tasks that are done before a second process has imported torch


class Task(NamedTuple):
    op: str
    number: int  # among the op's variants; a kernel cannot be sent between processes
    target: str


@dataclass(frozen=True, slots=True)
class Failure:
    op: str
    variant: str
    target: str
    reason: str


def prove_all(
    ops: Iterable[Op[Any, Any]],
    targets: Sequence[str],
    *,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[list[Proof], list[Failure]]:
    """Returns results in the order of targets and ops; `progress` is called with the variants done and in total."""
    chosen = list(ops)
    tasks = [
        Task(op.name, number, target)
        for target in targets
        for op in chosen
        for number in range(len(list_code(op, target)))
    ]
    proofs, failures = [], []
    for done, result in enumerate(_results(tasks, count_workers() if workers is None else workers), start=1):
        if isinstance(result, Proof):
            proofs.append(result)
        else:
            failures.append(result)
        if progress:
            progress(done, len(tasks))
    return proofs, failures


def count_workers() -> int:
    """Returns one worker per core, or fewer if memory is short."""
    fitting = find_host_memory().available_bytes // WORKER_BYTES
    return max(1, min(len(os.sched_getaffinity(0)), fitting, MAX_WORKERS))


def _results(tasks: list[Task], workers: int) -> Iterator[Proof | Failure]:
    if len(tasks) <= FEW:
        yield from map(prove_task, tasks)
        return
    for task, result in zip(tasks, call_apart(prove_task, tasks, workers), strict=True):
        yield _failure(task, result.reason) if isinstance(result, Died) else result


def prove_task(task: Task) -> Proof | Failure:
    try:
        return prove_code(task.op, _code(task), task.target)
    except KernelError as error:
        return _failure(task, str(error))
    except kernel_faults() as error:
        return _failure(task, f"{type(error).__name__}: {error}")


def _failure(task: Task, reason: str) -> Failure:
    return Failure(task.op, _code(task).variant, task.target, reason)


def _code(task: Task) -> DeviceCode | CudaCode:
    return list_code(find_op(task.op), task.target)[task.number]

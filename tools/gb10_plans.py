"""Runs the decode kernels as planned for a GB10 (48 SMs, 101,376 bytes of shared memory) on a larger GPU.

python tools/gb10_plans.py FOLDER [OP ...]

Decoding needs no instruction that only a GB10 has, so another GPU shows whether these plans are right, and how fast
an SM runs them. Every decode op is held to its reference for 1 to 8 tokens of gpt-oss-120b, then timed with a cold
cache. A rate is shown per SM, as a share of what a plain streaming read takes through as many SMs of this GPU, and
as a multiple of the data sheet's rate of a GB10's memory. The records are saved in FOLDER; OPs limit the run to
these decode ops. Exits with 1 if a check fails.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from firesteel.config import resolve
from firesteel.device import DeviceSpec, find_device
from firesteel.errors import KernelError
from firesteel.kernels.op.device_code import CudaCode
from firesteel.kernels.op.op import Implementation, Op
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.operands.shapes import SEED, ModelShapes
from firesteel.kernels.proof.isolate import Died, call_apart
from firesteel.kernels.proof.prove_all import count_workers
from firesteel.kernels.proof.verify import Check, Status, check_sample
from firesteel.kernels.registry import DECODE_OPS, find_op
from firesteel.kernels.stream.plan import Machine, machine_of, with_machine
from firesteel.kernels.stream.ring import MOST_TOKENS
from firesteel.kernels.target import find_target
from firesteel.measure.ops.bench import draw_inputs
from firesteel.measure.ops.memory import free_memory
from firesteel.measure.ops.workloads import OpWorkload, list_workloads
from firesteel.measure.record import Record
from firesteel.measure.timing import Timing, time_calls
from firesteel.model.spec import PRESETS

GB10 = (12, 1)
GB10_GB_S = 273.0  # data sheet
READ_BYTES = 2 << 30
READ_SHAPES = ((8192, 16), (8192, 32), (16384, 32))  # words a CTA reads at a time, warps
LEAST_CALLS = 8  # per pass
DecodeOps = tuple[Op[Any, Any], ...]


class Task(NamedTuple):
    op: str
    number: int  # among the op's variants for a GB10
    target: str


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    ops = choose(sys.argv[2:])
    out, device, machine = Path(sys.argv[1]), find_device("cuda"), machine_of(GB10)
    if device.num_sms < machine.num_sms:
        sys.exit(f"{device.name} has {device.num_sms} SMs, a GB10 {machine.num_sms}: take a larger GPU")
    assert device.capability is not None
    build_all(ops, find_target(device.capability))
    ceiling = find_ceiling(device, machine.num_sms)
    rate = READ_BYTES / ceiling.median_s / 1e9
    parameters = {"num_sms": machine.num_sms, "shared_bytes": machine.shared_bytes, "gb_s": rate}
    around = Record.now(
        device,
        resolve({}).config,
        name="read ceiling of as many SMs as a GB10",
        unit="s",
        samples=ceiling.samples_s,
        warmups=ceiling.warmups,
        parameters=parameters,
        seed=SEED,
    )
    around.save(out)
    print(
        f"{device.name}: {machine.num_sms} SMs read {rate:.0f} GB/s, {rate / machine.num_sms:.1f} each", flush=True
    )
    with with_machine(machine):
        failed = check_all(ops, device)
        time_all(ops, device, machine, rate, around, out)
    if failed:
        sys.exit("\n".join(f"{row.op} {row.implementation} {row.sample}: {row.why}" for row in failed))


def choose(names: Sequence[str]) -> DecodeOps:
    """Returns the decode ops of these names, or all of them."""
    known = {op.name: op for op in DECODE_OPS}
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"{unknown[0]} is not a decode op: choose from {', '.join(known)}")
    return tuple(known[name] for name in dict.fromkeys(names)) or DECODE_OPS


def list_codes(op: str) -> list[CudaCode]:
    make = find_op(op).make_device_code
    return [code for code in make(GB10) if isinstance(code, CudaCode)] if make else []


def build(task: Task) -> str | None:
    """Returns why the kernel does not compile, or None."""
    try:
        list_codes(task.op)[task.number].kernel.build(task.target)
    except KernelError as error:
        return str(error)
    return None


def build_all(ops: DecodeOps, target: str) -> None:
    """Compiles what a GB10 launches for the GPU at hand, in parallel processes, into the kernel cache."""
    tasks = [Task(op.name, number, target) for op in ops for number in range(len(list_codes(op.name)))]
    for task, result in zip(tasks, call_apart(build, tasks, count_workers()), strict=True):
        if result is not None:
            sys.exit(f"{task}: {result.reason if isinstance(result, Died) else result}")


def find_ceiling(device: DeviceSpec, num_sms: int) -> Timing:
    """Returns the fastest streaming read with one CTA on each of so few SMs."""
    from firesteel.measure.roofline.stream_read import read_kernel

    data = torch.arange(READ_BYTES // 4, dtype=torch.int32, device=device.torch_device)
    sums = torch.empty(num_sms, dtype=torch.int32, device=device.torch_device)

    def read(words: int, warps: int) -> None:
        read_kernel[(num_sms,)](data, sums, data.numel(), TILE=words, num_warps=warps)

    timings = [time_calls(partial(read, *shape), [()], device, samples=10) for shape in READ_SHAPES]
    return min(timings, key=lambda timing: timing.median_s)


def list_work(ops: DecodeOps, device: DeviceSpec) -> Iterator[OpWorkload]:
    shapes = ModelShapes(PRESETS["gpt-oss-120b"], device)
    for op in ops:
        for tokens in range(1, MOST_TOKENS + 1):
            yield from list_workloads(op, tokens, "bf16", shapes)


def list_takers(op: Op[Any, Any], args: tuple[Any, ...]) -> list[Implementation[Any, Any]]:
    """Returns the implementations in CUDA that take the arguments."""
    ways = [way for way in op.implementations.values() if way.name.startswith("cuda")]
    return [way for way in ways if way.accepts is None or way.accepts(*args) is None]


def check_all(ops: DecodeOps, device: DeviceSpec) -> list[Check]:
    """Holds all workloads to their references, and samples in MXFP8; prints and returns what failed."""
    rows = []
    for op in ops:
        free_memory(device)
        for sample in op.make_samples(device.torch_device) if op.make_samples else ():
            if sample.label.startswith("gpt-oss") and "mxfp8" in sample.label:
                rows += check(op, sample)
    for workload in list_work(ops, device):
        rows += check(workload.op, Sample(workload.label, workload.part.draw()))
    failed = [row for row in rows if row.status in (Status.FAILED, Status.NOT_RUN)]
    passed = sum(row.status is Status.PASSED for row in rows)
    print(f"{passed} checks passed, {len(failed)} failed", flush=True)
    for row in failed:
        print(f"  {row.op} {row.implementation} {row.sample}: {row.why}", flush=True)
    return failed


def check(op: Op[Any, Any], sample: Sample) -> list[Check]:
    """Checks what takes the sample; if nothing does, that is a failure."""
    takers = list_takers(op, sample.args)
    if not takers:
        return [Check(op.name, "cuda", sample.label, failure="no implementation takes it")]
    return [check_sample(op, way, sample) for way in takers]


def time_all(
    ops: DecodeOps, device: DeviceSpec, machine: Machine, ceiling: float, around: Record, out: Path
) -> None:
    print(f"{'op':16} {'part':8} tokens {'way':12} {'us':>8} {'GB/s':>7} per SM  share  of a GB10's memory rate")
    for workload in list_work(ops, device):
        inputs = draw_inputs(workload, device)
        for way in list_takers(workload.op, inputs[0]):
            timing = time_calls(way.function, inputs, device, samples=10, rounds=-(-LEAST_CALLS // len(inputs)))
            moved = sum(workload.op.bytes(*args) for args in inputs) / len(inputs)
            rate = moved / timing.median_s / 1e9
            figures = {
                "op": workload.op.name,
                "part": workload.part.label,
                "m": workload.m,
                "implementation": way.name,
                "num_sms": machine.num_sms,
                "shared_bytes": machine.shared_bytes,
                "bytes": moved,
                "gb_s": rate,
                "gb_s_per_sm": rate / machine.num_sms,
                "share": rate / ceiling,
                "times_gb10_memory": rate / GB10_GB_S,
            }
            replace(
                around,
                name=f"op {workload.op.name} planned for a GB10",
                samples=timing.samples_s,
                warmups=timing.warmups,
                parameters=figures,
                kernels={workload.op.name: way.name},
            ).save(out)
            print(
                f"{workload.op.name:16} {workload.part.label:8} {workload.m:6} {way.name:12} "
                f"{timing.median_s * 1e6:8.1f} {rate:7.0f} {rate / machine.num_sms:6.1f} {rate / ceiling:6.1%} "
                f"{rate / GB10_GB_S:6.2f}",
                flush=True,
            )
        del inputs
        free_memory(device)  # else the next inputs find none of it


if __name__ == "__main__":
    main()

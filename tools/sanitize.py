"""Runs every kernel on small arguments under compute-sanitizer; started by sanitize_all.py.

python tools/sanitize.py [--all-arrive] [OP ...]          # all ops, or the named ones

Torch's memory pool would hide reads past the end of a tensor: set PYTORCH_NO_CUDA_MEMORY_CACHING=1. With
--all-arrive the decode kernels are built so that racecheck can follow their order. These run twice more, at the
widths of gpt-oss with few experts and a small vocabulary: on all SMs, where CTAs share strips, and on as few SMs as
an op accepts, where each CTA takes many strips and the ring wraps around.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from firesteel.device import DeviceSpec, find_device
from firesteel.kernels.op.op import Op
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.ops.moe_matmul import moe_matmul
from firesteel.kernels.proof.verify import verify
from firesteel.kernels.registry import ALL_OPS, DECODE_OPS
from firesteel.kernels.stream import shapes as decode_shapes
from firesteel.kernels.stream.build import with_all_arriving
from firesteel.kernels.stream.plan import with_sms

SMALL_BYTES = 4e6  # limit on arguments; under racecheck a call takes a thousand times as long
STREAMED_BYTES = 8e7
NARROW = replace(decode_shapes.GPT_OSS, experts=4, vocabulary=640)
FEW_SMS = 4
FEW_SMS_OF = {"decode_fc2": 16, "decode_experts": 16}  # their CTAs sum at most a dozen strips
NO_IMPLEMENTATION = "no implementation accepts it"


def main() -> None:
    names = sys.argv[1:]
    all_arrive = "--all-arrive" in names
    names = [name for name in names if name != "--all-arrive"]
    unknown = set(names) - {op.name for op in ALL_OPS}
    if unknown:
        sys.exit(f"unknown op {', '.join(sorted(unknown))}; the ops are {', '.join(op.name for op in ALL_OPS)}")
    device = find_device("cuda")
    decode_shapes.GPT_OSS = NARROW
    with with_all_arriving() if all_arrive else nullcontext():
        failed = run(choose(ALL_OPS, names), device, SMALL_BYTES)
        for op in choose((*DECODE_OPS, moe_matmul), names):
            for most in (None, few_sms(op)):
                with with_sms(most):
                    failed += run([op], device, STREAMED_BYTES, f" over {most or 'all'} SMs")
    if failed:
        sys.exit("\n".join(failed))


def few_sms(op: Op[Any, Any]) -> int:
    return FEW_SMS_OF.get(op.name, FEW_SMS)


def choose(ops: Sequence[Op[Any, Any]], names: Sequence[str]) -> list[Op[Any, Any]]:
    return [op for op in ops if not names or op.name in names]


def run(ops: Sequence[Op[Any, Any]], device: DeviceSpec, most_bytes: float, where: str = "") -> list[str]:
    """Returns what failed, in words."""
    failed = []
    for op in ops:
        for sample in op.make_samples(device.torch_device):
            if op.bytes(*sample.args) < most_bytes:
                failed += check(op, device, sample, where)
    return failed


def check(op: Op[Any, Any], device: DeviceSpec, sample: Sample, where: str) -> list[str]:
    """Does the same as `run` and prints what it did and the seconds it took, which may be many."""
    start = time.perf_counter()
    checks = [check for check in verify(op, device, [sample]) if check.refusal is None]
    names = ", ".join(check.implementation for check in checks) or NO_IMPLEMENTATION
    print(f"{op.name}{where}, {sample.label}: {names} ({time.perf_counter() - start:.1f} s)", flush=True)
    return [
        f"{check.op} {check.implementation} {check.sample}: {check.failure}" for check in checks if check.failure
    ]


if __name__ == "__main__":
    main()

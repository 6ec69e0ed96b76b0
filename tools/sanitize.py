"""Runs every kernel once on small arguments, for compute-sanitizer to watch: `make sanitize` where there is a GPU.

Torch's own pool of memory would hide reads past an end: set PYTORCH_NO_CUDA_MEMORY_CACHING=1. With --all-arrive the
kernels of decode steps are those whose order racecheck can follow.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext

from firesteel.device import find_device
from firesteel.kernels import ALL_OPS
from firesteel.kernels.decode_launch import with_all_arriving
from firesteel.kernels.verify import verify

SMALL_BYTES = 4e6  # a call of the sanitizer's racecheck takes a thousand times its time


def main() -> None:
    with with_all_arriving() if sys.argv[1:] == ["--all-arrive"] else nullcontext():
        run()


def run() -> None:
    device = find_device("cuda")
    failed = []
    for op in ALL_OPS:
        samples = [one for one in op.make_samples(device.torch_device) if op.bytes(*one.args) < SMALL_BYTES]
        checks = [one for one in verify(op, device, samples) if one.refusal is None]
        failed += [one for one in checks if one.failure is not None]
        print(f"{op.name}: {len(checks)} checks", flush=True)
    if failed:
        sys.exit("\n".join(f"{one.op} {one.implementation} {one.sample}: {one.failure}" for one in failed))


if __name__ == "__main__":
    main()

"""Targets that kernels are compiled for, with the shared memory of each."""

from __future__ import annotations

import difflib

from firesteel.errors import KernelError

# target -> bytes of shared memory that a CTA may opt in to
SHARED_LIMIT_BYTES = {
    "sm_80": 166_912, "sm_86": 101_376, "sm_89": 101_376, "sm_90a": 232_448, "sm_100a": 232_448,
    "sm_103a": 232_448, "sm_120a": 101_376, "sm_121a": 101_376,
}  # fmt: skip


def find_target(capability: tuple[int, int]) -> str:
    number = 10 * capability[0] + capability[1]
    for target in SHARED_LIMIT_BYTES:
        if architecture(target) == number:
            return target
    raise KernelError(
        f"no kernel is proven for compute capability {capability[0]}.{capability[1]}; "
        f"targets: {', '.join(SHARED_LIMIT_BYTES)}"
    )


def is_sm90(capability: tuple[int, int] | None) -> bool:
    return capability is not None and capability[0] == 9


def architecture(target: str) -> int:
    """Returns 121 for "sm_121a"."""
    if target not in SHARED_LIMIT_BYTES:
        near = difflib.get_close_matches(target, SHARED_LIMIT_BYTES, n=1, cutoff=0)[0]
        raise KernelError(
            f"there is no target {target!r}; did you mean {near}? targets: {', '.join(SHARED_LIMIT_BYTES)}"
        )
    return int(target.removeprefix("sm_").removesuffix("a"))

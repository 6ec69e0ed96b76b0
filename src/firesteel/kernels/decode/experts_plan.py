"""Plans of decode_experts: the stages, shared memory and CTAs of its two kernels on a GPU."""

from __future__ import annotations

from collections.abc import Iterator

from firesteel.kernels.decode.fc1 import chosen_bytes, expert_sizes
from firesteel.kernels.decode.fc2 import MOST_STRIPS, sum_bytes
from firesteel.kernels.op.device_code import CudaCode
from firesteel.kernels.stream.build import keep
from firesteel.kernels.stream.plan import TOKENS, Machine, Streamed, list_plans, most_width, plan_streamed
from firesteel.kernels.stream.ring import STRIP_ROWS, Stream, align
from firesteel.kernels.stream.shapes import GPT_OSS

STAGES = 7
FLIGHT = 3
PASSED_STAGES, PASSED_FLIGHT = 8, 2  # of cuda:passed


def _defines(machine: Machine, hidden: int, experts: int, active: int, rounds_x: bool) -> dict[str, int]:
    return {
        "HIDDEN": hidden,
        "INTERMEDIATE": hidden,
        "EXPERTS": experts,
        "ACTIVE": active,
        "ROUNDS_X": rounds_x,
        "MOST_WIDTH": most_width(machine),
    }


def even_bytes(stream: Stream, active: int) -> int:
    shares = align(4 * 4)  # `Parts` in csrc/decode_experts_even.cu
    return stream.ring_bytes + stream.x_bytes + stream.scratch_bytes + chosen_bytes(stream.tokens, active) + shares


@keep
def plan_even(
    machine: Machine, *, tokens: int, hidden: int, experts: int, active: int, rounds_x: bool = False
) -> Streamed:
    """Plans `cuda:even`, for two tokens or more."""
    return plan_streamed(
        "decode_experts_even",
        machine,
        is_fp4=True,
        columns=hidden,
        tokens=tokens,
        stages=STAGES,
        shared=lambda stream: even_bytes(stream, active),
        strips=hidden // STRIP_ROWS,
        sizes=_defines(machine, hidden, experts, active, rounds_x),
        flight=FLIGHT,
        alone=True,
        fewest_held=most_width(machine),
    )


def passed_bytes(stream: Stream, active: int) -> int:
    plan = align(16 + 4 * active + MOST_STRIPS * active + 1)  # barriers, weights, places
    beside = stream.scratch_bytes + sum_bytes(stream) + chosen_bytes(stream.tokens, active) + plan
    return stream.ring_bytes + stream.x_bytes + align(2 * stream.columns) + beside


@keep
def plan_passed(machine: Machine, *, hidden: int, experts: int, active: int, rounds_x: bool = False) -> Streamed:
    """Plans `cuda:passed`, for one token."""
    sizes = _defines(machine, hidden, experts, active, rounds_x)
    return plan_streamed(
        "decode_experts_passed",
        machine,
        is_fp4=True,
        columns=hidden,
        tokens=1,
        stages=PASSED_STAGES,
        shared=lambda stream: passed_bytes(stream, active),
        strips=hidden // STRIP_ROWS,
        sizes={**sizes, "MOST_WIDTH": 1, "HOLDS_ALL": True, "MOST_STRIPS": MOST_STRIPS},
        may_pair=active > 1,
        flight=PASSED_FLIGHT,
        alone=True,
    )


def list_kernels(capability: tuple[int, int]) -> Iterator[CudaCode]:
    """Lists what such a GPU launches for gpt-oss."""
    sizes = expert_sizes(GPT_OSS)
    del sizes["intermediate"]

    def plan_shares(machine: Machine, is_fp4: bool, tokens: int, rounds_x: bool) -> Streamed:
        return plan_even(machine, tokens=tokens, rounds_x=rounds_x, **sizes)

    yield from list_plans(capability, plan_shares, formats=(True,), tokens=TOKENS[1:], way="cuda:even")

    def plan_passing(machine: Machine, is_fp4: bool, tokens: int, rounds_x: bool) -> Streamed:
        return plan_passed(machine, rounds_x=rounds_x, **sizes)

    yield from list_plans(capability, plan_passing, formats=(True,), tokens=TOKENS[:1], way="cuda:passed")

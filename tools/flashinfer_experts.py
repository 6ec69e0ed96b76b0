"""Runs FlashInfer's experts at the sizes of gpt-oss-120b on a Hopper GPU, each case in a process of its own.

PYTHONPATH=src python tools/flashinfer_experts.py [--sanitize] [--unfit] [--kind bf16|fp8] [--tokens 1,64,500]

Every case has ids of the last expert, behind which memory need not be mapped, and is held to the reference.
--sanitize  each case under compute-sanitizer (slow: give few tokens)
--unfit     instead, one case for each tile that does not fit the sizes, with and without the last expert: says
            whether reading behind the weights is what ended with an illegal memory access
Prints a row for each case, with the last line of an error. Exits with 1 if a case of tiles that fit is wrong.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import torch

from firesteel.kernels.libraries import flashinfer_moe
from firesteel.kernels.libraries.flashinfer_experts import FlashinferExperts
from firesteel.kernels.op.tolerance import assert_close
from firesteel.kernels.operands.weights import random_experts
from firesteel.kernels.ops.moe_library import TOLERANCES
from firesteel.kernels.ops.moe_matmul import ALPHA, moe_matmul
from firesteel.kernels.ops.moe_operands import MoeMatmulOperands

EXPERTS, ACTIVE, SIZE, LIMIT, SEED = 128, 4, 2880, 7.0, 7
TOKENS = "1,8,64,500,2048,8192"
SANITIZER = ("compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9")
SECONDS = 300  # for one case
DEVICE = "cuda"


class Case(NamedTuple):
    kind: str
    tokens: int
    tile: int = -1  # of the first matmul: all that fit
    has_last: bool = True  # ids of the last expert

    def __str__(self) -> str:
        tile = "tiles that fit" if self.tile < 0 else f"tile {self.tile}, which does not fit"
        return (
            f"{self.kind}, {self.tokens} tokens, {tile}, {'with' if self.has_last else 'without'} the last expert"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sanitize", action="store_true")
    parser.add_argument("--unfit", action="store_true")
    parser.add_argument("--kind", choices=("bf16", "fp8"), action="append")
    parser.add_argument("--tokens", default=TOKENS)
    parser.add_argument("--case", nargs=4, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.case:
        kind, *numbers = asked.case
        tokens, tile, has_last = map(int, numbers)
        print(run_case(Case(kind, tokens, tile, bool(has_last))))
        return
    tokens, kinds = [int(number) for number in asked.tokens.split(",")], asked.kind or ["bf16", "fp8"]
    cases = (
        list_unfit(kinds, tokens[0]) if asked.unfit else (Case(kind, count) for kind in kinds for count in tokens)
    )
    is_right = True
    for case in cases:
        ended_well, found = run_apart(case, SANITIZER if asked.sanitize else ())
        is_right &= ended_well or asked.unfit
        print(f"| {case} | {found} | {'right' if ended_well else 'WRONG'} |", flush=True)
    sys.exit(not is_right)


def run_apart(case: Case, wrapper: tuple[str, ...]) -> tuple[bool, str]:
    """Runs a case in a process; returns whether it ended well, and its last line."""
    numbers = (str(case.tokens), str(case.tile), str(int(case.has_last)))
    command = [*wrapper, sys.executable, __file__, "--case", case.kind, *numbers]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return False, f"not done after {SECONDS} s"
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    said = [line for line in lines if "Error:" in line] or lines or [f"exit status {done.returncode}"]
    return done.returncode == 0, said[-1]


def draw(case: Case) -> MoeMatmulOperands:
    """Draws tokens and experts; the first token is of the last experts, or none of them is of the last."""
    generator = torch.Generator(DEVICE).manual_seed(SEED)
    scores = torch.rand(case.tokens, EXPERTS, generator=generator, device=DEVICE)
    scores[:, -1] = 0
    if case.has_last:
        scores[0, -ACTIVE:] = 2
    return MoeMatmulOperands(
        x=torch.randn(case.tokens, SIZE, generator=generator, device=DEVICE).bfloat16(),
        ids=scores.topk(ACTIVE).indices,
        weights=torch.full((case.tokens, ACTIVE), 1 / ACTIVE, device=DEVICE),
        experts=FlashinferExperts.pack(random_experts(EXPERTS, SIZE, SIZE, generator), case.kind),
        limit=LIMIT,
    )


def run_case(case: Case) -> str:
    operands = draw(case)
    experts = operands.experts
    assert isinstance(experts, FlashinferExperts)
    inputs = (operands.x, operands.ids, operands.weights, experts, ALPHA, LIMIT)
    if case.tile >= 0:
        first, second = flashinfer_moe.list_tiles(experts, ACTIVE)
        call = flashinfer_moe.prepare_call(*inputs)
        _, down = flashinfer_moe.choose_profile(call, first, second)
        call((case.tile, down))
        flashinfer_moe.synchronize()
        return "ended without an error"
    actual = flashinfer_moe.run(*inputs)
    flashinfer_moe.synchronize()
    errors = assert_close(actual=actual, expected=moe_matmul.reference(operands), tolerance=TOLERANCES[case.kind])
    (tiles,) = flashinfer_moe._profiles.values()
    return f"tiles {tiles}; largest error {errors.worst:.4f}, rms {errors.rms:.4f}"


def list_unfit(kinds: list[str], tokens: int) -> Iterator[Case]:
    """Yields a case with and one without the last expert for each tile that does not fit the first matmul."""
    for kind in kinds:
        generator = torch.Generator(DEVICE).manual_seed(SEED)
        experts = FlashinferExperts.pack(random_experts(1, SIZE, SIZE, generator), kind)
        runner, (fitting, _) = (
            call(experts, 1) for call in (flashinfer_moe.find_runner, flashinfer_moe.list_tiles)
        )
        for tile in range(runner.get_gemm1_tactic_count()):
            if tile not in fitting:
                yield from (Case(kind, tokens, tile, has_last) for has_last in (False, True))


if __name__ == "__main__":
    main()

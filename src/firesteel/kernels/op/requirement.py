"""Requirements of the user: the implementation of an op, and the verdict on its machine code.

Written OP=IMPLEMENTATION[:VARIANT][@VERDICT], for example moe_matmul=triton:gemm@native-fp4.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from firesteel.errors import KernelError

VERDICTS = ("native-fp4", "fp8", "int8", "bf16", "none")
UNREAD = "unread"  # replaces the verdict if the machine code could not be disassembled
ALIASES = {"moe": "moe_matmul"}
COVERED = {"rms_norm": ("rms_norm_fed",)}  # op -> ops that run in its place and inherit its requirement


@dataclass(frozen=True, slots=True)
class Requirement:
    op: str
    implementation: str  # a family (triton) or one of its ways (triton:gemm)
    verdict: str | None = None

    @classmethod
    def parse(cls, text: str) -> Requirement:
        op, equals, rest = text.strip().partition("=")
        implementation, at, verdict = rest.partition("@")
        if not op or not equals or not implementation or (at and verdict not in VERDICTS):
            raise KernelError(
                f"{text!r} is not OP=IMPLEMENTATION[:VARIANT][@VERDICT], verdict one of {', '.join(VERDICTS)}"
            )
        if " " in implementation:
            raise KernelError(
                f"{text!r} names one kernel: a requirement is of a whole implementation, as "
                f"{op}={implementation.split()[0]}; --activation says what activations are rounded to"
            )
        return cls(ALIASES.get(op, op), implementation, verdict or None)

    def __str__(self) -> str:
        return f"{self.op}={self.implementation}" + (f"@{self.verdict}" if self.verdict else "")

    def names(self, variant: str) -> bool:
        """Returns whether an implementation, or a variant of its device code, is the required one."""
        way = variant.partition(" ")[0]
        return self.implementation in (way, way.partition(":")[0])


def list_requirements(text: str) -> list[Requirement]:
    """Lists requirements joined by commas, with those of the ops they cover."""
    written = [Requirement.parse(part) for part in text.split(",") if part.strip()]
    named = {requirement.op for requirement in written}
    inherited = [
        replace(requirement, op=op)
        for requirement in written
        for op in COVERED.get(requirement.op, ())
        if op not in named
    ]
    return written + inherited


def parse_requirements(text: str) -> dict[str, Requirement]:
    """Parses requirements joined by commas into one per op."""
    by_op: dict[str, Requirement] = {}
    for requirement in list_requirements(text):
        if requirement.op in by_op:
            raise KernelError(f"{requirement.op} has two requirements: {by_op[requirement.op]} and {requirement}")
        by_op[requirement.op] = requirement
    return by_op

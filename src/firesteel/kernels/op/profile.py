"""The category of an op in a profile, and which of the roofline's bytes its kernels read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

EXPERTS, DENSE, ATTENTION, NORM = "experts", "dense", "attention", "norm and elementwise"
MOE_OVERHEAD = "MoE overhead"  # choosing experts, sorting and gathering tokens, summing their results
QUANTISATION, MOVEMENT, SAMPLING = "quantisation", "memory movement", "sampling"


@dataclass(frozen=True, slots=True)
class OpProfile:
    """The entry of an op in profiles, by its own name (on a CPU) and by the names of its kernels.

    `reads` names the bytes of the roofline that it reads: "OP" or "OP.PART" of the network, several separated by
    blanks; "linear.mxfp4" and "linear.plain" are the dense layers with weights of that format. A kernel that only
    prepares or finishes the work of another reads nothing that counts.
    """

    category: str
    reads: str = ""
    kernels: Mapping[str, str] = field(
        default_factory=dict
    )  # kernel -> what it reads; the op's own name needs no entry
    beside: Mapping[str, str] = field(default_factory=dict)  # kernel of another category -> that category

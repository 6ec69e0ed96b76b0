"""What a kernel's name says: its category, and which of the roofline's bytes it reads; knows no times.

Our own kernels are known by name. Those of vLLM, SGLang, llama.cpp, torch and cuBLAS are told by patterns.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from firesteel.measure.roofline.roofline import OpCost, StepCost

EXPERTS, DENSE, ATTENTION, NORM, SAMPLING, COPIES = (
    "experts", "dense", "attention", "norm and elementwise", "sampling", "copies",
)  # fmt: skip
OTHER, GAPS = "other", "gaps"
# The first that matches.
RULES = (
    (SAMPLING, r"argmax|top_?p|multinomial|sampl|logits_processor|penalt"),
    (
        EXPERTS,
        r"moe|expert|rout|topk_?gating|grouped_?(gemm|mm|matmul)|mul_mat_id|swiglu|silu_and_mul|fused_gate|matmul_ogs|"
        r"groupproblemshape|mainloopsm\d+array|bmm_\w+_mxe2m1|b12x",
    ),
    (ATTENTION, r"attention|flash|fmha|paged|mha|kv_write|reshape_and_cache|rope|rotary|sdpa|scaled_dot"),
    (COPIES, r"mem(cpy|set)|aten::copy_|aten::to\b"),
    (DENSE, r"linear|gemm|gemv|matmul|mul_mat|cutlass|nvjet|marlin|addmm|aten::(mm|bmm)|splitk|dot_"),
    (NORM, r"norm|elementwise|vectorized|quantize|aten::|reduce|index|embed|fill|cat|add|mul"),
)
# Our kernels, and our ops, which a CPU's profile names: "op", "op.part" or, of the dense layers, "linear.mxfp4" and
# "linear.plain" say what they read. Those that only prepare or finish another's work read nothing that counts.
OWN = {
    EXPERTS: {
        "moe_matmul": "moe_matmul", "decode_experts": "moe_matmul", "decode_experts_even": "moe_matmul",
        "decode_experts_passed": "moe_matmul",
        "moe_stream": "moe_matmul", "decode_fc1": "moe_matmul.gate_up", "decode_fc2": "moe_matmul.down",
        "fc1": "moe_matmul.gate_up", "fc2": "moe_matmul.down", "moe_sum": "", "sum_parts": "", "count_chunk": "",
        "place_chunk": "", "route": "route", "decode_router": "route", "choose_kernel": "",
    },
    DENSE: {
        "linear": "linear", "decode_qkv": "linear.qkv", "decode_o": "linear.o", "decode_lm_head": "linear.lm_head",
        "decode_lm_head_rows": "linear.lm_head",
        "mxfp4_linear_kernel": "linear.mxfp4", "vector_kernel": "linear.plain route",
        "tile_kernel": "linear.plain route",
    },
    ATTENTION: {
        "attention": "attention", "decode_attention": "attention", "attend": "attention", "merge": "",
        "rope_kv_write": "rope_kv_write", "rope_kv_write_kernel": "rope_kv_write",
    },
    # store_rows rounds activations, for linear as for moe_matmul.
    NORM: dict.fromkeys(
        ("rms_norm", "rms_norm_fed", "rms_norm_kernel", "quantize_mxfp8", "quantize_mxfp8_kernel", "store_rows"), ""
    ),
    SAMPLING: dict.fromkeys(("draw", "draw_part", "choose_part", "decode_sample"), ""),
}  # fmt: skip
SHARED = (
    "vector_kernel",
    "tile_kernel",
)  # multiply the dense layers and, before choose_kernel, the router's matrix
# Where bytes belong that no kernel of ours reads.
CATEGORY_OF_OP = {
    "moe_matmul": EXPERTS, "route": EXPERTS, "linear": DENSE, "attention": ATTENTION, "rope_kv_write": ATTENTION,
}  # fmt: skip


class Named(NamedTuple):
    category: str
    reads: tuple[str, ...] = ()


def classify(name: str) -> str:
    """Of a name alone."""
    return sort_names([name])[name].category


def sort_names(names: Collection[str]) -> dict[str, Named]:
    """All names of one profile: what the shared kernels did, the others tell."""
    own = {name: Named(category, tuple(reads.split())) for category, kernels in OWN.items()
           for name, reads in kernels.items()}  # fmt: skip
    found = {name: own[name] if name in own else Named(_match(name)) for name in names}
    has_library = any(one.category == DENSE for name, one in found.items() if name not in own)
    shared = [name for name in SHARED if name in found]
    if len(shared) == 2:  # more than one token: tiles multiply the dense layers
        found |= {"vector_kernel": Named(EXPERTS, ("route",)), "tile_kernel": Named(DENSE, ("linear.plain",))}
    elif shared and has_library:  # cuBLAS does
        found[shared[0]] = Named(EXPERTS, ("route",))
    return found


def find_bytes(named: Mapping[str, Named], cost: StepCost) -> tuple[dict[str, float], dict[str, float]]:
    """Bytes a step by kernel and by category. A kernel that shares its bytes with another has none of its own."""
    exact = {read for one in named.values() for read in one.reads}
    readers = {op: [name for name, one in named.items() if _reads(one, op, cost, exact)] for op in cost.ops}
    by_kernel: dict[str, float] = {}
    by_category: dict[str, float] = {}
    for op, names in readers.items():
        category = named[names[0]].category if names else CATEGORY_OF_OP.get(op.op, "")
        by_category[category] = by_category.get(category, 0.0) + op.bytes
        for name in names:
            by_kernel[name] = by_kernel.get(name, 0.0) + op.bytes
    shared = {name for names in readers.values() if len(names) > 1 for name in names}
    return {name: moved for name, moved in by_kernel.items() if name not in shared}, by_category


def _reads(kernel: Named, op: OpCost, cost: StepCost, exact: Collection[str]) -> bool:
    """A kernel that names a part reads it; one that names no part, those that nobody names."""
    part = f"{op.op}.{op.part}"
    form = f"{op.op}.{'mxfp4' if op.part in cost.step.mxfp4_layers else 'plain'}"
    return part in kernel.reads or (part not in exact and bool({op.op, form} & set(kernel.reads)))


def _match(name: str) -> str:
    return next((category for category, rule in RULES if re.search(rule, name, re.IGNORECASE)), OTHER)

"""Kernel names: the category of each, and which of the roofline's bytes it reads.

Our own kernels are known by name; those of vLLM, SGLang, llama.cpp, torch and cuBLAS by patterns.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from firesteel.measure.roofline.roofline import OpCost, StepCost

EXPERTS, DENSE, ATTENTION = "experts", "dense", "attention"
NORM, SAMPLING, COPIES = "norm and elementwise", "sampling", "copies"
OTHER, GAPS = "other", "gaps"
# The first match counts.
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
# Our kernels, and our ops, which appear in a CPU's profile. The value names what they read: "op", "op.part" or, for
# dense layers, "linear.mxfp4" and "linear.plain"; it is empty for kernels that only prepare or finish other work.
OWN = {
    EXPERTS: {
        "moe_matmul": "moe_matmul",
        "decode_experts": "moe_matmul",
        "decode_experts_even": "moe_matmul",
        "decode_experts_passed": "moe_matmul",
        "moe_stream": "moe_matmul",
        "decode_fc1": "moe_matmul.gate_up",
        "decode_fc2": "moe_matmul.down",
        "fc1": "moe_matmul.gate_up",
        "fc2": "moe_matmul.down",
        "moe_sum": "",
        "sum_parts": "",
        "count_chunk": "",
        "place_chunk": "",
        "route": "route",
        "decode_router": "route",
        "choose_kernel": "",
    },
    DENSE: {
        "linear": "linear",
        "decode_qkv": "linear.qkv",
        "decode_o": "linear.o",
        "decode_lm_head": "linear.lm_head",
        "decode_lm_head_rows": "linear.lm_head",
        "mxfp4_linear_kernel": "linear.mxfp4",
        "vector_kernel": "linear.plain route",
        "tile_kernel": "linear.plain route",
    },
    ATTENTION: {
        "attention": "attention",
        "decode_attention": "attention",
        "attend": "attention",
        "merge": "",
        "rope_kv_write": "rope_kv_write",
        "rope_kv_write_kernel": "rope_kv_write",
    },
    # store_rows rounds activations, for linear and for moe_matmul.
    NORM: dict.fromkeys(
        ("rms_norm", "rms_norm_fed", "rms_norm_kernel", "quantize_mxfp8", "quantize_mxfp8_kernel", "store_rows"), ""
    ),
    SAMPLING: dict.fromkeys(("draw", "draw_part", "choose_part", "decode_sample"), ""),
}
# They multiply the dense layers and, before choose_kernel, the router's matrix.
SHARED = ("vector_kernel", "tile_kernel")
# Categories of bytes that none of our kernels reads.
CATEGORY_OF_OP = {
    "moe_matmul": EXPERTS,
    "route": EXPERTS,
    "linear": DENSE,
    "attention": ATTENTION,
    "rope_kv_write": ATTENTION,
}


class KernelLabel(NamedTuple):
    category: str
    reads: tuple[str, ...] = ()


def classify(name: str) -> str:
    """Returns the category of a name by itself."""
    return label_kernels([name])[name].category


def label_kernels(names: Collection[str]) -> dict[str, KernelLabel]:
    """Labels all names of one profile: what the shared kernels did follows from the others."""
    own = {
        name: KernelLabel(category, tuple(reads.split()))
        for category, kernels in OWN.items()
        for name, reads in kernels.items()
    }
    labels = {name: own[name] if name in own else KernelLabel(_match(name)) for name in names}
    has_library = any(label.category == DENSE for name, label in labels.items() if name not in own)
    shared = [name for name in SHARED if name in labels]
    if len(shared) == 2:  # with more than one token, tiles multiply the dense layers
        labels["vector_kernel"] = KernelLabel(EXPERTS, ("route",))
        labels["tile_kernel"] = KernelLabel(DENSE, ("linear.plain",))
    elif shared and has_library:  # cuBLAS multiplies them
        labels[shared[0]] = KernelLabel(EXPERTS, ("route",))
    return labels


def count_bytes(labels: Mapping[str, KernelLabel], cost: StepCost) -> tuple[dict[str, float], dict[str, float]]:
    """Returns bytes per step by kernel and by category. Kernels that share bytes appear by category only."""
    exact = {read for label in labels.values() for read in label.reads}
    readers = {op: [name for name, label in labels.items() if _reads(label, op, cost, exact)] for op in cost.ops}
    by_kernel: dict[str, float] = {}
    by_category: dict[str, float] = {}
    for op, names in readers.items():
        category = labels[names[0]].category if names else CATEGORY_OF_OP.get(op.op, "")
        by_category[category] = by_category.get(category, 0.0) + op.bytes
        for name in names:
            by_kernel[name] = by_kernel.get(name, 0.0) + op.bytes
    shared = {name for names in readers.values() if len(names) > 1 for name in names}
    return {name: moved for name, moved in by_kernel.items() if name not in shared}, by_category


def _reads(kernel: KernelLabel, op: OpCost, cost: StepCost, exact: Collection[str]) -> bool:
    """A kernel that names a part reads that part; one that names an op reads the parts that no kernel names."""
    part = f"{op.op}.{op.part}"
    form = f"{op.op}.{'mxfp4' if op.part in cost.step.mxfp4_layers else 'plain'}"
    return part in kernel.reads or (part not in exact and bool({op.op, form} & set(kernel.reads)))


def _match(name: str) -> str:
    return next((category for category, rule in RULES if re.search(rule, name, re.IGNORECASE)), OTHER)

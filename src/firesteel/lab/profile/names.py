"""Kernel names: the category of each, and which of the roofline's bytes it reads.

Our own kernels are known by name; those of vLLM, SGLang, llama.cpp, torch and cuBLAS by patterns.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from firesteel.kernels.op.profile import (
    ATTENTION,
    DENSE,
    EXPERTS,
    MOE_OVERHEAD,
    MOVEMENT,
    NORM,
    QUANTISATION,
    SAMPLING,
)
from firesteel.kernels.registry import ALL_OPS, NETWORK_OPS
from firesteel.measure.roofline.roofline import OpCost, StepCost

OTHER, GAPS = "other", "gaps"
# A word inside the name of a kernel that multiplies, attends or normalises says only what is fused into it.
FUSED = "gemm|gemv|matmul|mul_mat|cutlass::device_kernel|mainloop|marlin::marlin|attention|attn|norm|silu|swiglu"
# The first match counts.
RULES = (
    (SAMPLING, r"argmax|top_?p|multinomial|sampl|logits_processor|penalt"),
    (MOVEMENT, r"repack"),
    (
        MOE_OVERHEAD,
        r"rout|topk_?(gating|moe|softmax)|argsort|mm_ids|bitmatrix|keyed_add|_finalize_|finalizemoe|expandinput|"
        r"moe_?(align|sum|sort|permute|unpermute|scatter|gather|reduce|prefix|finalize|combine|count)|"
        r"(sort|permute|scatter|gather|count|combine)_?(moe|expert)|expert_?(offset|sort|count|map)",
    ),
    (QUANTISATION, rf"^(?!.*({FUSED})).*(quant|to_mxfp|from_mxfp|downcast|upcast|scaled_fp8)"),
    (
        EXPERTS,
        r"moe|expert|grouped_?(gemm|mm|matmul)|mul_mat_id|swiglu|silu_and_mul|act_and_mul|fused_gate|matmul_ogs|"
        r"groupproblemshape|mainloopsm\d+array|bmm_\w+_mxe2m1|b12x|gemv_fp4|mul_mat\w*(<\(ggml_type\)39\b|mxfp4)",
    ),
    (
        ATTENTION,
        r"attention|attn|flash(?!infer)|fmha|paged|mha|kv_write|reshape_and_cache|rope|rotary|sdpa|scaled_dot|xqa|"
        r"mergestate|soft_max_f32",
    ),
    (
        MOVEMENT,
        r"mem(cpy|set)|cop(y|ies)|aten::(to|cat|clone|contiguous|index\w*|gather|scatter|embedding)\b|catarray|\bcpy|"
        r"_cat_|indexing|index_?(select|put|copy)|[gs]et_rows|embed|fill|transpose|(vectorized_)?gather|scatter",
    ),
    (DENSE, r"linear|gemm|gemv|matmul|mul_mat|cutlass|nvjet|marlin|addmm|aten::(mm|bmm)|splitk|dot_"),
    (NORM, r"norm|elementwise|vectorized|aten::|reduce|add|mul"),
)
# They multiply the dense layers and, before choose_kernel, the router's matrix.
SHARED = ("vector_kernel", "tile_kernel")


class KernelLabel(NamedTuple):
    category: str
    reads: tuple[str, ...] = ()


def _list_own() -> dict[str, KernelLabel]:
    """Returns our ops, which a CPU's profile names, and our kernels, as the ops declare them."""
    own: dict[str, KernelLabel] = {}
    for op in ALL_OPS:
        if op.profile is not None:
            for name, reads in {op.name: op.profile.reads, **op.profile.kernels}.items():
                own[name] = KernelLabel(op.profile.category, tuple(reads.split()))
            own |= {name: KernelLabel(category) for name, category in op.profile.beside.items()}
    return own


def classify(name: str) -> str:
    """Returns the category of a name by itself."""
    return label_kernels([name])[name].category


def label_kernels(names: Collection[str]) -> dict[str, KernelLabel]:
    """Labels all names of one profile: what the shared kernels did follows from the others."""
    own = _list_own()
    labels = {name: own[name] if name in own else KernelLabel(_match(name)) for name in names}
    has_library = any(label.category == DENSE for name, label in labels.items() if name not in own)
    shared = [name for name in SHARED if name in labels]
    if len(shared) == 2:  # with more than one token, tiles multiply the dense layers
        labels["vector_kernel"] = KernelLabel(MOE_OVERHEAD, ("route",))
        labels["tile_kernel"] = KernelLabel(DENSE, ("linear.plain",))
    elif shared and has_library:  # cuBLAS multiplies them
        labels[shared[0]] = KernelLabel(MOE_OVERHEAD, ("route",))
    return labels


def count_bytes(labels: Mapping[str, KernelLabel], cost: StepCost) -> tuple[dict[str, float], dict[str, float]]:
    """Returns bytes per step by kernel and by category. Kernels that share bytes appear by category only."""
    exact = {read for label in labels.values() for read in label.reads}
    readers = {op: [name for name, label in labels.items() if _reads(label, op, cost, exact)] for op in cost.ops}
    categories = {op.name: op.profile.category for op in NETWORK_OPS if op.profile and op.profile.reads}
    by_kernel: dict[str, float] = {}
    by_category: dict[str, float] = {}
    for op, names in readers.items():
        category = labels[names[0]].category if names else categories.get(op.op, "")
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

"""Names and defaults on help pages, repeated here because their owners import torch. A test compares them."""

from __future__ import annotations

ACTIVATIONS = ("bf16", "mxfp8", "mxfp4")  # kernels.operands.activation
BENCH_ACTIVATIONS = (*ACTIVATIONS, "fp8")  # the last of the experts only
DENSE_FORMATS = ("bf16", "q8_0", "fp8", "mxfp4")  # measure.roofline.roofline
KV_FORMATS = ("bf16", "fp8", "q8_0", "fp32")
GPUS = ("gb10", "h100", "h200", "b200", "5090", "pro6000")  # device.catalogue
MODELS = ("gpt-oss-120b", "gpt-oss-20b")  # model.spec
FUSED_REQUESTS = 8  # model.decode
TUNED_OPS = ("moe_matmul", "linear", "attention", "route")  # measure.ops.tune
PRECISIONS = (  # quality
    "as shipped",
    "all MXFP4",
    "MXFP8 activations",
    "MXFP4 activations",
    "FP8 activations in prompts",
    "all MXFP4, MXFP8 activations",
    "all MXFP4, MXFP4 activations",
    "MXFP6 E3M2 activations",
    "MXFP6 E2M3 activations",
)
PROMPT_LENGTHS = (512, 2048, 8192)  # measure.roofline.prompts
STEP_TOKENS = 8192
MATRIX_SHARE = 0.4
LINK_GB_S, LINK_US = 25.0, 41.0  # measure.roofline.nodes
SLOWER_PERCENT, MORE_GB = 3.0, 1.0  # lab.compare.compare

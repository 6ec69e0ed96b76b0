"""Child of test_rms_norm_fed.py, interpreted or on a GPU: python norm_parts.py - TOKENS,HIDDEN...

The fused norm against rms_norm and then the kernel that stores rows, to the bit and in every form.
"""

import sys

import torch

from firesteel.kernels.op.needs import interpreting
from firesteel.kernels.operands.fed import Fed
from firesteel.kernels.ops.rms_norm import RmsNormOperands, rms_norm
from firesteel.kernels.proof.verify import same_bits, tensors
from firesteel.kernels.triton.mxfp4_product import store
from firesteel.kernels.triton.rms_norm import launch

PLACE = torch.device("cpu" if interpreting() else "cuda")
FORMS = [("bf16", False), ("mxfp8", False), ("mxfp8", True), ("mxfp4", False), ("mxfp4", True)]

torch.set_num_threads(1)
for size in sys.argv[2:]:
    tokens, hidden = map(int, size.split(","))
    generator = torch.Generator(PLACE).manual_seed(tokens)
    residual, update = torch.randn(2, tokens, hidden, device=PLACE, generator=generator).bfloat16()
    weight = torch.rand(hidden, device=PLACE, generator=generator).bfloat16()
    operands = RmsNormOperands(residual=residual, update=update, weight=weight, eps=1e-5)
    expected = rms_norm.implementations["triton"].function(operands)
    for activation, native in FORMS:
        y, total = torch.empty_like(residual), torch.empty_like(residual)
        fed = Fed.empty(residual.shape, activation, native, PLACE)
        launch(residual, update, weight, 1e-5, y, total, fed)
        wanted = tensors((*expected, store(expected[0], activation, native)))
        results = tensors((y, total, fed))
        assert len(results) == len(wanted) == 3 + native
        assert all(map(same_bits, results, wanted)), f"T={tokens} H={hidden} {activation} native={native}"

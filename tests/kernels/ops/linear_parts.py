"""Child of test_linear.py: python linear_parts.py SAMPLES.pt compares the interpreted SM12x path to torch."""

import sys

import torch

from firesteel.kernels.op.needs import interpreting
from firesteel.kernels.op.op import Implementation, anywhere
from firesteel.kernels.operands.fed import store
from firesteel.kernels.ops.linear import linear
from firesteel.kernels.proof.verify import check
from firesteel.kernels.triton import mxfp4_linear as device

assert interpreting()
torch.set_num_threads(1)
for sample in torch.load(sys.argv[1], weights_only=False):

    def run(operands):
        weight = operands.weight
        tile = device.pick_tile(operands.x.shape[0], weight.shape[0], (12, 1), True)
        fed = store(operands.x, operands.activation, native=True)
        return device.run(fed, weight.codes, weight.scales, operands.bias, tile)

    failure = check(linear, Implementation("native", run, anywhere), sample)
    assert failure is None, f"{sample.label}: {failure}"

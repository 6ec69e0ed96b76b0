"""decode_o: the reference compared with the ops it fuses, and refusals of the kernel."""

from dataclasses import replace

import torch

from firesteel.formats import mxfp4
from firesteel.kernels.decode.o import decode_o
from firesteel.kernels.operands.activation import round_activation
from firesteel.kernels.operands.weights import Mxfp4Weight


def test_it_adds_the_matmul_to_the_residual_in_place(small_operands):
    operands = small_operands(decode_o)
    old = operands.r.clone()
    r = decode_o.reference(operands)
    update = (operands.mixed.float() @ operands.weight.float().T + operands.bias.float()).bfloat16()
    torch.testing.assert_close(r, old + update, atol=0.04, rtol=0.01)
    assert r is operands.r and not torch.equal(r, old)


def test_packed_weights_are_decoded_to_their_values(small_operands):
    operands = small_operands(decode_o)
    codes, scales = mxfp4.quantize(operands.weight.float())
    plain = replace(operands, r=operands.r.clone(), weight=mxfp4.dequantize(codes, scales).bfloat16())
    packed = replace(operands, weight=Mxfp4Weight(codes=codes, scales=scales))
    assert torch.equal(decode_o.reference(packed), decode_o.reference(plain))


def test_activations_of_packed_weights_are_rounded_if_requested(small_operands):
    operands = small_operands(decode_o, "kindling T=5 mxfp4-weight mxfp8")
    assert operands.activation == "mxfp8"
    plain = replace(operands, r=operands.r.clone(), activation="bf16")
    mixed = round_activation(operands.mixed.float(), "mxfp8").bfloat16()
    expected = decode_o.reference(replace(plain, mixed=mixed, r=operands.r.clone()))
    assert torch.equal(decode_o.reference(operands), expected)
    assert not torch.equal(decode_o.reference(plain), expected)


def test_kernel_refuses_unsupported_operands_with_the_reason(small_operands, refusal):
    operands = small_operands(decode_o)
    assert refusal(decode_o) is None
    assert "bf16, not torch.float16" in refusal(decode_o, weight=operands.weight.half())
    assert "contiguous" in refusal(decode_o, mixed=operands.mixed.T.contiguous().T)
    assert "only before MXFP4 weights" in refusal(decode_o, activation="mxfp8")
    assert "to mxfp8, not to mxfp4" in refusal(decode_o, activation="mxfp4")
    assert "1 to 8 tokens" in refusal(decode_o, r=operands.r.repeat(2, 1))

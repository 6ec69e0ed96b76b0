"""The order of the experts for triton_kernels: packing and unpacking gives every bit back."""

from dataclasses import fields

import pytest
import torch

from firesteel.kernels.libraries.hopper_experts import AT_ONCE, HopperExperts
from firesteel.kernels.libraries.package import find_triton_kernels
from firesteel.kernels.operands.weights import random_experts
from tests.kernels.libraries.stand_in import use_stand_in

SIZES = [(3, 96, 160), (AT_ONCE + 1, 160, 96), (2 * AT_ONCE, 288, 96)]


def check_round_trip(num_experts, hidden, inter):
    experts = random_experts(num_experts, hidden, inter, torch.Generator().manual_seed(1))
    packed = HopperExperts.pack(experts)
    restored = packed.unpack()
    for part in fields(experts):
        before, after = getattr(experts, part.name), getattr(restored, part.name)
        assert before.dtype == after.dtype and after.is_contiguous() and torch.equal(before, after), part.name
    return experts, packed


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_unpacking_restores_every_bit(sizes, monkeypatch):
    use_stand_in(monkeypatch)
    experts, packed = check_round_trip(*sizes)
    assert packed.gate_up_bias.dtype == packed.down_bias.dtype == torch.float32
    held = [getattr(packed, part.name) for part in fields(packed)]
    held_bytes = sum(part.nbytes for part in held if isinstance(part, torch.Tensor))
    assert packed.expert_bytes * sizes[0] == held_bytes > sizes[0] * experts.expert_bytes


def test_weights_are_wrapped_with_their_sizes_before_padding(monkeypatch):
    use_stand_in(monkeypatch)
    _, packed = check_round_trip(3, 96, 160)
    (up, up_precision), (down, _) = packed.wrap()
    assert up.shape == [3, 96, 320] and down.shape == [3, 160, 96]
    values, layout = up.storage
    assert values is packed.gate_up_values and values.stride(1) == 1 and layout.shape == (3, 48, 320)
    assert up_precision.weight_scale.shape == [3, 4, 320]  # three groups, padded to four


@pytest.mark.peer
@pytest.mark.parametrize("sizes", [*SIZES, (2, 2880, 2880)], ids=str)
def test_unpacking_restores_every_bit_of_the_library_s_own_order(sizes):
    if find_triton_kernels() is None:
        pytest.skip("the package triton_kernels is not installed")
    experts, packed = check_round_trip(*sizes)
    assert not torch.equal(packed.gate_up_values.flatten()[:64], experts.gate_up_codes.flatten()[:64])

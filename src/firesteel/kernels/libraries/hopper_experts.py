"""The experts of a layer in the order that triton_kernels reads on Hopper."""
# mypy: disable-error-code="import-untyped,import-not-found"

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from firesteel.formats.group import SIZE
from firesteel.kernels.libraries.triton_kernels import import_library
from firesteel.kernels.operands.weights import Experts, ExpertTensors

SCALE_GROUPS = 4  # the library reads scales of four groups at a time and does not mask them: vLLM #47303
NUM_WARPS = 8  # of a CTA; the order of the scales depends on it
AT_ONCE = 8  # experts reordered together: the library widens codes to 32 bits on the way


@dataclass(frozen=True, slots=True, kw_only=True)
class HopperExperts(ExpertTensors):
    """Values and scales as HopperMXValueLayout and HopperMXScaleLayout order them; biases in fp32.

    K and N are the input and output sizes of a matmul: H and 2I of gate_up, I and H of down.
    """

    gate_up_values: Tensor  # uint8, K by N and padded, transposed
    gate_up_scales: Tensor
    gate_up_bias: Tensor  # [E, 2I] fp32
    down_values: Tensor
    down_scales: Tensor
    down_bias: Tensor  # [E, H] fp32
    hidden: int
    inter: int

    @classmethod
    def pack(cls, experts: Experts) -> HopperExperts:
        """Reorders the experts; nothing is rounded."""
        hidden, inter = experts.down_bias.shape[1], experts.gate_up_bias.shape[1] // 2
        return cls(
            gate_up_values=_reorder(experts.gate_up_codes, _swizzle_values),
            gate_up_scales=_reorder(experts.gate_up_scales, _swizzle_scales),
            gate_up_bias=experts.gate_up_bias.float(),
            down_values=_reorder(experts.down_codes, _swizzle_values),
            down_scales=_reorder(experts.down_scales, _swizzle_scales),
            down_bias=experts.down_bias.float(),
            hidden=hidden,
            inter=inter,
        )

    def unpack(self) -> Experts:
        """Returns the experts in the checkpoint's order, bit for bit those that were packed."""
        up, down = (2 * self.inter, self.hidden), (self.hidden, self.inter)
        return Experts(
            gate_up_codes=_restore_values(self.gate_up_values, *up),
            gate_up_scales=_restore_scales(self.gate_up_scales, *up),
            gate_up_bias=self.gate_up_bias.bfloat16(),
            down_codes=_restore_values(self.down_values, *down),
            down_scales=_restore_scales(self.down_scales, *down),
            down_bias=self.down_bias.bfloat16(),
        )

    def wrap(self) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        """Returns the library's tensor and precision of gate_up and of down."""
        up, down = (self.hidden, 2 * self.inter), (self.inter, self.hidden)
        num_experts = self.down_bias.shape[0]
        return (
            _wrap(self.gate_up_values, self.gate_up_scales, num_experts, *up),
            _wrap(self.down_values, self.down_scales, num_experts, *down),
        )


def _reorder(packed: Tensor, swizzle: Callable[[Tensor], Tensor]) -> Tensor:
    """Reorders a few experts at a time, which bounds the memory that it takes."""
    parts = [swizzle(part) for part in packed.split(AT_ONCE)]
    shape = (packed.shape[0], *parts[0].mT.shape[1:])
    whole = torch.empty(shape, dtype=torch.uint8, device=packed.device)
    for number, part in enumerate(parts):
        whole[number * AT_ONCE : number * AT_ONCE + part.shape[0]] = part.mT
    return whole.mT  # the library reads it with its strides as they are here


def _swizzle_values(codes: Tensor) -> Tensor:
    swizzled: Tensor = _value_layout(codes.mT.shape).swizzle_data(codes.mT)
    return swizzled


def _swizzle_scales(scales: Tensor) -> Tensor:
    padded = torch.nn.functional.pad(scales, (0, -scales.shape[-1] % SCALE_GROUPS)).mT
    swizzled: Tensor = _scale_layout(padded.shape).swizzle_data(padded)
    return swizzled


def _restore_values(values: Tensor, rows: int, columns: int) -> Tensor:
    layout = _value_layout((values.shape[0], columns // 2, rows))
    return torch.cat([layout.unswizzle_data(part).mT for part in values.split(AT_ONCE)]).contiguous()


def _restore_scales(scales: Tensor, rows: int, columns: int) -> Tensor:
    groups = columns // SIZE
    layout = _scale_layout((scales.shape[0], groups + -groups % SCALE_GROUPS, rows))
    restored = torch.cat([layout.unswizzle_data(part).mT for part in scales.split(AT_ONCE)])
    return restored[:, :rows, :groups].contiguous()


def _value_layout(shape: Any) -> Any:
    return import_library().layout.HopperMXValueLayout(tuple(shape), mx_axis=1)


def _scale_layout(shape: Any) -> Any:
    return import_library().layout.HopperMXScaleLayout(tuple(shape), mx_axis=1, num_warps=NUM_WARPS)


def _wrap(values: Tensor, scales: Tensor, num_experts: int, columns: int, rows: int) -> tuple[Any, Any]:
    library = import_library()
    tensor, matmul = library.tensor, library.matmul
    groups = columns // SIZE
    padded = groups + -groups % SCALE_GROUPS
    weight_layout = _value_layout((num_experts, columns // 2, rows))
    scale_layout = _scale_layout((num_experts, padded, rows))
    weight = tensor.Tensor(
        tensor.Storage(values, weight_layout), dtype=tensor.FP4, shape=[num_experts, columns, rows]
    )
    scale = tensor.Tensor(tensor.Storage(scales, scale_layout), shape=[num_experts, padded, rows])
    flex = matmul.FlexCtx(rhs_data=library.numerics.InFlexData())
    return weight, matmul.PrecisionConfig(weight_scale=scale, flex_ctx=flex)

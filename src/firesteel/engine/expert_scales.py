"""What the scales of a model's experts allow Hopper's kernels to do, found out once, while loading."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from firesteel.device import DeviceSpec
from firesteel.kernels.operands.weights import Experts
from firesteel.model.gpt_oss import GptOss

_log = logging.getLogger(__name__)
HOPPER = (9, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Experts:
    """Numbers of experts whose weights E4M3 can represent, and of the others."""

    in_fp8: int = 0
    in_bf16: int = 0

    def __str__(self) -> str:
        """Returns how many FP8 kernels leave to bf16 ones, such as "3 of 4608"."""
        return f"{self.in_bf16} of {self.in_fp8 + self.in_bf16}"


def examine_experts(model: GptOss, device: DeviceSpec) -> None:
    """Examines the experts of all layers if an op of this model will ask; logs those that need another kernel."""
    if device.capability != HOPPER and not model.widens_to_e4m3:
        return
    experts = [(number, layer.experts) for number, layer in enumerate(model.weights.layers)]
    plain = [(number, held) for number, held in experts if isinstance(held, Experts)]
    if wide := [number for number, held in plain if not held.fits_bf16]:
        _log.warning(
            "layers %s: scales of experts are outside of 2^-93 to 2^33, for which moe_matmul=cuda:wgmma is exact; "
            "another implementation computes these layers",
            ", ".join(map(str, wide)),
        )
    if model.widens_to_e4m3:
        _log.info("experts computed in bf16, because E4M3 cannot represent a row: %s", count_fp8_experts(model))


def count_fp8_experts(model: GptOss) -> Fp8Experts:
    """Counts the experts of all layers that FP8 kernels compute, and that they leave to bf16 ones."""
    held = [layer.experts for layer in model.weights.layers if isinstance(layer.experts, Experts)]
    unfit = sum(experts.e4m3_rows.num_unfit for experts in held)
    return Fp8Experts(in_fp8=sum(len(experts.down_bias) for experts in held) - unfit, in_bf16=unfit)

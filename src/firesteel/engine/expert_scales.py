"""What the scales of a model's experts allow Hopper's kernels to do, found out once, while loading."""

from __future__ import annotations

import logging

from firesteel.device import DeviceSpec
from firesteel.kernels.operands.weights import Experts
from firesteel.model.gpt_oss import GptOss

_log = logging.getLogger(__name__)
HOPPER = (9, 0)


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
        _log.info("experts computed in bf16, because E4M3 cannot represent a row: %s", describe_unfit(model))


def describe_unfit(model: GptOss) -> str:
    """Returns how many experts FP8 kernels leave to bf16 ones, such as "3 of 4608"."""
    held = [layer.experts for layer in model.weights.layers if isinstance(layer.experts, Experts)]
    unfit = sum(experts.e4m3_rows.num_unfit for experts in held)
    return f"{unfit} of {sum(len(experts.down_bias) for experts in held)}"

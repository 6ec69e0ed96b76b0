"""Attention heads that the kernels of a GPU compute for draft networks."""

from __future__ import annotations

from pathlib import Path

from firesteel.device import DeviceSpec
from firesteel.model.drafters.errors import DrafterError

HEAD_DIMS = (32, 64, 128)
MOST_SHARING = 16  # query heads on one kv head


def check_gpu_heads(directory: Path, device: DeviceSpec, *, head_dim: int, num_sharing: int) -> None:
    """Raises if `device` is a GPU that cannot compute heads of `head_dim`, `num_sharing` of them on a kv head."""
    if device.is_cuda and (head_dim not in HEAD_DIMS or num_sharing > MOST_SHARING):
        raise DrafterError(
            f"{directory / 'config.json'}: head_dim = {head_dim} and {num_sharing} query heads on a kv head; on a "
            f"GPU firesteel computes heads of 32, 64 or 128, at most {MOST_SHARING} on one: use --device cpu"
        )

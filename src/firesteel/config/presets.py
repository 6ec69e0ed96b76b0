"""Named sets of defaults (`--preset`): what each setting gets, why, and what it costs in quality.

A value of a set is used where the user gives none by flag, environment or file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

AUTO = "auto"  # firesteel serve: the set of the GPU; elsewhere AS_SHIPPED
AS_SHIPPED = "as-shipped"  # the checkpoint's own formats
SPARK = "spark"
NO_COST = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetValue:
    """A setting's value in a set."""

    setting: str
    value: Any
    why: str
    quality: str = NO_COST


PRESETS: dict[str, tuple[PresetValue, ...]] = {
    AS_SHIPPED: (),
    SPARK: (
        PresetValue(
            setting="mxfp4_layers",
            value="qkv,o,lm_head",
            why="a token of gpt-oss-120b reads 2.7 GB instead of 5.0: at 232 GB/s the ceiling is 84 tok/s, not 46",
            quality="measured on Kindling only: +0.26 % perplexity, 5 answers lost and 1 gained of 2,824; "
            "not measured on gpt-oss",
        ),
        PresetValue(
            setting="prefill_activation",
            value="mxfp8",
            why="prompts are multiplied by block-scaled instructions instead of bf16 ones; not yet run on GB10",
            quality="measured on Kindling only, together with MXFP4 layers and in decoding as well: +0.24 % "
            "perplexity, 5 answers lost and 1 gained of 2,824; not measured on gpt-oss",
        ),
        PresetValue(
            setting="max_decode_delay_ms",
            value=500.0,
            why="a step with 64 prompt tokens reads most experts and takes 0.27 s, one with 2048 takes 0.43 s "
            "(predicted): at 60 ms, prompts beside decoding requests would be cut into 64 tokens each",
        ),
    ),
}


def find_preset_values(name: str) -> dict[str, Any]:
    """Returns the values of a set by setting."""
    return {choice.setting: choice.value for choice in PRESETS[name]}

"""The dense layers held in MXFP4, as given by a config.json and by the user.

Experts are MXFP4 in every gpt-oss. A checkpoint made by `firesteel quantize` also holds some of qkv, o and lm_head
in MXFP4 and names them in `quantization_config.mxfp4_layers`, a field that only firesteel reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from firesteel.config import LAYERS
from firesteel.model.fields import SpecError
from firesteel.untrusted.json_file import shorten

EXPERTS, *_DENSE = LAYERS
DENSE_LAYERS = tuple(_DENSE)
FIELD = "mxfp4_layers"
# Modules that transformers finds in each layer, and those it never converts.
MODULES = {
    "qkv": (
        "model.layers.*.self_attn.q_proj",
        "model.layers.*.self_attn.k_proj",
        "model.layers.*.self_attn.v_proj",
    ),
    "o": ("model.layers.*.self_attn.o_proj",),
    "lm_head": ("lm_head",),
}
ATTENTION = "model.layers.*.self_attn"
NEVER = ("model.layers.*.mlp.router", "model.embed_tokens")


def read_layers(content: Any) -> tuple[str, ...]:
    """Returns the dense layers that a config.json's quantization_config declares as MXFP4."""
    if content is None:
        raise SpecError(
            "quantization_config is missing: the experts are not MXFP4; use the published MXFP4 checkpoint"
        )
    if not isinstance(content, Mapping):
        raise SpecError(f"quantization_config must be an object, not {shorten(repr(content))}")
    if "nvfp4" in json.dumps(content).lower():
        raise SpecError(
            "quantization_config says NVFP4 (16 values per group, E4M3 scales); firesteel computes MXFP4 "
            "(32 values per group, E8M0 scales): use the published MXFP4 checkpoint"
        )
    method = content.get("quant_method")
    if method != "mxfp4":
        raise SpecError(
            f"quantization_config.quant_method = {shorten(repr(method))}: firesteel computes 'mxfp4' only"
        )
    layers = content.get(FIELD, [EXPERTS])
    if not isinstance(layers, list) or EXPERTS not in layers or any(name not in LAYERS for name in layers):
        raise SpecError(
            f"quantization_config.{FIELD} must list {EXPERTS} and some of {', '.join(DENSE_LAYERS)}, "
            f"not {shorten(layers)}"
        )
    return in_order(layers)


def write_quantization(layers: Sequence[str]) -> dict[str, Any]:
    """Returns the quantization_config that reads back as `layers`; with experts only, it is the published one."""
    kept = [module for name in DENSE_LAYERS[:2] if name not in layers for module in MODULES[name]]
    attention = [ATTENTION] if not {"qkv", "o"} & set(layers) else kept
    head = [] if "lm_head" in layers else ["lm_head"]
    content: dict[str, Any] = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [*attention, *NEVER, *head],
    }
    return {**content, FIELD: [EXPERTS, *in_order(layers)]} if in_order(layers) else content


def held_layers(stored: Sequence[str], asked: Sequence[str]) -> tuple[str, ...]:
    """Returns the dense layers to hold in MXFP4: those in `asked`, or those stored if `asked` is empty.

    Raises if a layer that is stored in MXFP4 is not asked for: its BF16 values are lost.
    """
    check_names(asked)
    wanted = in_order(asked) if asked else tuple(stored)
    if missing := [name for name in stored if name not in wanted]:
        together = ",".join(in_order([*stored, *wanted]))
        raise SpecError(
            f"mxfp4_layers = {','.join(asked)}: the checkpoint holds {', '.join(missing)} in MXFP4 already and its "
            f"BF16 values are lost: leave --mxfp4-layers empty, use --mxfp4-layers {together}, or load the "
            "checkpoint that it was made from"
        )
    return wanted


def check_names(layers: Sequence[str]) -> None:
    if unknown := [name for name in layers if name not in LAYERS]:
        raise SpecError(
            f"{unknown[0]!r} is not a layer that can be held in MXFP4; choose from {', '.join(LAYERS)}, or all"
        )


def in_order(layers: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in DENSE_LAYERS if name in layers)

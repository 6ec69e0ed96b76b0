"""Facts of a DFlash drafter, read from its config.json and compared with the target's.

A draft never changes what the target generates, so fields that nothing here reads are ignored; those that would
make another network of it are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firesteel.kernels.rope import RopeSpec
from firesteel.model.drafters.errors import DrafterError
from firesteel.model.fields import Fields, SpecError
from firesteel.model.spec import FULL, ModelSpec, read_rope
from firesteel.untrusted.json_file import read_object, shorten

ARCHITECTURE = "DFlashDraftModel"
OTHER_DRAFTER = "choose a DFlash drafter that was trained for this model"
DAMAGED = "download the drafter again"
LONGEST_SPAN = 64  # published ones have 8 to 16
MOST_TARGET_LAYERS = 64  # that a drafter reads; published ones read 5 to 8
# Allowed values of fields that may be absent; others describe networks that firesteel does not compute.
FIXED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "is_causal": (None, False),
    "is_neox_style": (True,),
    "use_sliding_window": (None, False),
    "use_aux_hidden_state": (True,),
    "logit_scale": (None, 1.0),
}
FIXED_OF_DFLASH: dict[str, tuple[Any, ...]] = {
    "causal": (None, False),
    "use_swa": (None, False),
    "use_aux_hidden_state": (True,),
    "attention_sink_bias": (None, False),
    "input_embedding_scale": (None, 1.0),
    "output_multiplier": (None, 1.0),
    "final_logit_softcapping": (None, 0.0),
}
USED_OF_DFLASH = {"mask_token_id", "target_layer_ids", "block_size", "num_target_layers"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlashSpec:
    """Shapes and constants of a DFlash drafter: layers of Qwen3's kind over features of the target."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rope: RopeSpec
    rms_eps: float
    has_bias: bool  # of q, k, v and o
    span: int  # rows of a draft: the anchor, which is the last token that is known, and the drafted tokens
    mask_token_id: int  # stands for the drafted tokens
    target_layer_ids: tuple[int, ...]  # layers whose outputs are the features

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def num_features(self) -> int:
        """The width of a row of features: the outputs of the target's layers side by side."""
        return len(self.target_layer_ids) * self.hidden_size

    @property
    def boundaries(self) -> tuple[int, ...]:
        """The layers' outputs as boundaries of Taps: what layer n returns is read by layer n + 1."""
        return tuple(layer + 1 for layer in self.target_layer_ids)


def read_dflash_spec(directory: Path, target: ModelSpec) -> DFlashSpec:
    """Reads the config.json of a drafter's folder; raises DrafterError if it does not fit `target`."""
    path = directory / "config.json"
    content = read_object(path, DrafterError, f"is {directory} the folder of a drafter?")
    try:
        spec = parse_dflash_spec(content, target.vocab_size)
        _check_target(spec, content, target)
    except (DrafterError, SpecError) as error:
        raise DrafterError(f"{path}: {error}") from error
    return spec


def parse_dflash_spec(content: Mapping[str, Any], vocab_size: int) -> DFlashSpec:
    """Returns the facts of a config.json; `vocab_size` is assumed if it does not say its own."""
    if content.get("architectures") != [ARCHITECTURE]:
        raise DrafterError(
            f"architectures is {shorten(content.get('architectures'))}, not {[ARCHITECTURE]}: {OTHER_DRAFTER}"
        )
    own = content.get("dflash_config")
    if not isinstance(own, Mapping):
        raise DrafterError(f"dflash_config is {shorten(own)}, not an object; {DAMAGED}")
    _check_fixed(content, own)
    fields = Fields(content, "")
    spec = DFlashSpec(
        num_layers=fields.integer("num_hidden_layers"),
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("intermediate_size"),
        num_heads=fields.integer("num_attention_heads"),
        num_kv_heads=fields.integer("num_key_value_heads"),
        head_dim=fields.integer("head_dim"),
        vocab_size=fields.integer("vocab_size") if "vocab_size" in content else vocab_size,
        rope=read_rope(content),
        rms_eps=fields.number("rms_norm_eps"),
        has_bias=_read_bias(content),
        span=_read_whole(own if "block_size" in own else content, "block_size", least=2, most=LONGEST_SPAN),
        mask_token_id=_read_whole(own, "dflash_config.mask_token_id", least=0, most=1 << 22),
        target_layer_ids=_read_layers(own),
    )
    _check_heads(spec)
    _check_full_attention(content, spec)
    return spec


def write_dflash_spec(spec: DFlashSpec, target: ModelSpec) -> dict[str, Any]:
    """Returns the content of a config.json that reads back as `spec`."""
    rope = spec.rope
    scaling = {
        "rope_type": "yarn",
        "factor": rope.factor,
        "beta_fast": rope.beta_fast,
        "beta_slow": rope.beta_slow,
        "truncate": rope.truncate,
        "original_max_position_embeddings": rope.original_context,
    }
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "attention_bias": spec.has_bias,
        "block_size": spec.span,
        "dflash_config": {
            "mask_token_id": spec.mask_token_id,
            "target_layer_ids": list(spec.target_layer_ids),
        },
        "head_dim": spec.head_dim,
        "hidden_act": "silu",
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "layer_types": [FULL] * spec.num_layers,
        "max_position_embeddings": target.max_context,
        "num_attention_heads": spec.num_heads,
        "num_hidden_layers": spec.num_layers,
        "num_key_value_heads": spec.num_kv_heads,
        "num_target_layers": target.num_layers,
        "rms_norm_eps": spec.rms_eps,
        "rope_theta": rope.theta,
        "rope_scaling": scaling if rope.factor > 1 else None,
        "tie_word_embeddings": False,
        "vocab_size": spec.vocab_size,
    }


def _check_fixed(content: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    for prefix, given, fixed in (("", content, FIXED), ("dflash_config.", own, FIXED_OF_DFLASH)):
        for name, allowed in fixed.items():
            if name in given and not any(_is_same(given[name], value) for value in allowed):
                raise DrafterError(
                    f"{prefix}{name} = {shorten(given[name])}: firesteel computes drafters with {allowed[-1]!r} "
                    "only; choose another drafter"
                )
    for name in own:
        if name not in USED_OF_DFLASH and name not in FIXED_OF_DFLASH:
            raise DrafterError(
                f"unknown field dflash_config.{shorten(name)}, which may change the network; choose another drafter"
            )


def _is_same(value: Any, allowed: Any) -> bool:
    """Compares values of JSON: 1 is 1.0, but not true."""
    return bool(isinstance(value, bool) == isinstance(allowed, bool) and value == allowed)


def _read_bias(content: Mapping[str, Any]) -> bool:
    has_bias = content.get("attention_bias", False)
    if not isinstance(has_bias, bool):
        raise DrafterError(f"attention_bias must be true or false, not {shorten(has_bias)}; {DAMAGED}")
    return has_bias


def _read_whole(content: Mapping[str, Any], path: str, *, least: int, most: int) -> int:
    value = content.get(path.rpartition(".")[2])
    if type(value) is not int or not least <= value <= most:
        raise DrafterError(f"{path} must be a whole number from {least} to {most}, not {shorten(value)}; {DAMAGED}")
    return value


def _read_layers(own: Mapping[str, Any]) -> tuple[int, ...]:
    given = own.get("target_layer_ids")
    layers = given if isinstance(given, list) and all(type(layer) is int for layer in given) else []
    if not 0 < len(set(layers)) == len(layers) <= MOST_TARGET_LAYERS:
        raise DrafterError(
            "dflash_config.target_layer_ids must list different layers of the target, not "
            f"{shorten(given)}; {DAMAGED}"
        )
    return tuple(layers)


def _check_heads(spec: DFlashSpec) -> None:
    if spec.num_heads % spec.num_kv_heads:
        raise DrafterError(
            f"num_attention_heads = {spec.num_heads} is not a multiple of "
            f"num_key_value_heads = {spec.num_kv_heads}; {DAMAGED}"
        )
    if spec.head_dim % 2:
        raise DrafterError(f"head_dim = {spec.head_dim}: rope needs an even number; {DAMAGED}")


def _check_full_attention(content: Mapping[str, Any], spec: DFlashSpec) -> None:
    kinds = content.get("layer_types")
    if kinds is not None and kinds != [FULL] * spec.num_layers:
        raise DrafterError(
            f"layer_types = {shorten(kinds)}: firesteel computes drafters of num_hidden_layers = {spec.num_layers} "
            f"layers of {FULL} only; choose another drafter"
        )


def _check_target(spec: DFlashSpec, content: Mapping[str, Any], target: ModelSpec) -> None:
    """Raises if the drafter was trained for another target: it borrows the target's embedding and lm_head."""
    for name, own, theirs in (
        ("hidden_size", spec.hidden_size, target.hidden_size),
        ("target_hidden_size", content.get("target_hidden_size"), target.hidden_size),
        ("vocab_size", spec.vocab_size, target.vocab_size),
        ("draft_vocab_size", content.get("draft_vocab_size"), target.vocab_size),
        ("num_target_layers", content.get("num_target_layers"), target.num_layers),
    ):
        if own is not None and own != theirs:
            raise DrafterError(f"{name} = {shorten(own)}, but the target has {theirs}: {OTHER_DRAFTER}")
    if spec.mask_token_id >= target.vocab_size:
        raise DrafterError(
            f"dflash_config.mask_token_id = {spec.mask_token_id} is outside the target's vocabulary of "
            f"{target.vocab_size}: {OTHER_DRAFTER}"
        )
    for layer in spec.target_layer_ids:
        if not 0 <= layer < target.num_layers:
            raise DrafterError(
                f"dflash_config.target_layer_ids names layer {layer}, but the target has layers 0 to "
                f"{target.num_layers - 1}: {OTHER_DRAFTER}"
            )

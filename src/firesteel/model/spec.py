"""Facts of a gpt-oss checkpoint, read from config.json.

Every field is either used, known not to matter, or an error: a checkpoint that differs from gpt-oss in an unknown
way must not run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firesteel.kernels.rope import RopeSpec
from firesteel.model.fields import Fields, SpecError
from firesteel.model.precision import DENSE_LAYERS, in_order, read_layers, write_quantization
from firesteel.untrusted.json_file import read_object, shorten

GROUP = 32  # values of a row that share one MXFP4 scale
SLIDING, FULL = "sliding_attention", "full_attention"

# Fields that do not change what the network computes.
HARMLESS = {
    "architectures",
    "attention_dropout",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "initial_context_length",
    "initializer_range",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "pad_token_id",
    "return_dict",
    "router_aux_loss_coef",
    "torch_dtype",
    "transformers_version",
    "use_cache",
    "_name_or_path",
    "chunk_size_feed_forward",
    "id2label",
    "is_encoder_decoder",
    "label2id",
    "problem_type",
    "unsloth_fixed",
}
# Fields with one possible value; any other value describes a different network.
FIXED = {
    "model_type": "gpt_oss",
    "attention_bias": True,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "swiglu_alpha": 1.702,
}
USED = {
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "num_local_experts",
    "num_experts_per_tok",
    "experts_per_token",
    "vocab_size",
    "sliding_window",
    "layer_types",
    "rms_norm_eps",
    "swiglu_limit",
    "max_position_embeddings",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "quantization_config",
}
ROPE_FIELDS = {
    "rope_type",
    "type",
    "rope_theta",
    "factor",
    "original_max_position_embeddings",
    "beta_fast",
    "beta_slow",
    "truncate",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Shapes and constants of a gpt-oss network."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_experts: int
    num_active: int
    vocab_size: int
    windows: tuple[int | None, ...]  # per layer: tokens seen, the token itself included; None means all
    rope: RopeSpec
    max_context: int
    rms_eps: float = 1e-5
    swiglu_limit: float = 7.0
    mxfp4_layers: tuple[str, ...] = ()  # some of qkv, o and lm_head; experts are always MXFP4

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    def __post_init__(self) -> None:
        for name in ("hidden_size", "intermediate_size"):
            if getattr(self, name) % GROUP:
                raise SpecError(f"{name} = {getattr(self, name)}: MXFP4 needs a multiple of {GROUP}")
        if self.num_heads % self.num_kv_heads:
            raise SpecError(
                f"num_attention_heads = {self.num_heads} is not a multiple of "
                f"num_key_value_heads = {self.num_kv_heads}"
            )
        if self.num_active > self.num_experts:
            raise SpecError(
                f"num_experts_per_tok = {self.num_active} exceeds num_local_experts = {self.num_experts}"
            )
        if self.head_dim % 2:
            raise SpecError(f"head_dim = {self.head_dim}: rope needs an even number")
        if self.mxfp4_layers != in_order(self.mxfp4_layers):
            raise SpecError(f"mxfp4_layers = {self.mxfp4_layers}: must be some of {DENSE_LAYERS}, in this order")
        if "o" in self.mxfp4_layers and self.q_size % GROUP:
            raise SpecError(
                f"num_attention_heads * head_dim = {self.q_size}: MXFP4 needs a multiple of {GROUP} for o: "
                "leave o in BF16"
            )


def _gpt_oss(num_layers: int, num_experts: int) -> ModelSpec:
    return ModelSpec(
        num_layers=num_layers,
        hidden_size=2880,
        intermediate_size=2880,
        num_heads=64,
        num_kv_heads=8,
        head_dim=64,
        num_experts=num_experts,
        num_active=4,
        vocab_size=201088,
        windows=tuple(None if layer % 2 else 128 for layer in range(num_layers)),
        rope=RopeSpec(theta=150000.0, factor=32.0),
        max_context=131072,
    )


PRESETS = {"gpt-oss-120b": _gpt_oss(36, 128), "gpt-oss-20b": _gpt_oss(24, 32)}


def read_spec(directory: Path) -> ModelSpec:
    """Reads the config.json of a checkpoint folder; raises SpecError naming the field that is wrong."""
    path = directory / "config.json"
    content = read_object(path, SpecError, f"is {directory} a checkpoint folder?")
    try:
        return parse_spec(content)
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from error


def parse_spec(content: Mapping[str, Any]) -> ModelSpec:
    fields = Fields(content, "")
    if content.get("model_type") != FIXED["model_type"]:
        raise SpecError(
            f"model_type is {shorten(repr(content.get('model_type')))}, not 'gpt_oss': "
            "firesteel serves gpt-oss only"
        )
    mxfp4_layers = read_layers(content.get("quantization_config"))
    fields.reject_unknown(USED | FIXED.keys() | HARMLESS)
    for name, value in FIXED.items():
        if name in content and (type(content[name]) is not type(value) or content[name] != value):
            raise SpecError(f"{name} = {shorten(repr(content[name]))}: gpt-oss has {value!r}")
    num_layers = fields.integer("num_hidden_layers")
    return ModelSpec(
        num_layers=num_layers,
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("intermediate_size"),
        num_heads=fields.integer("num_attention_heads"),
        num_kv_heads=fields.integer("num_key_value_heads"),
        head_dim=fields.integer("head_dim"),
        num_experts=fields.integer("num_local_experts"),
        num_active=_active(fields),
        vocab_size=fields.integer("vocab_size"),
        windows=_windows(fields, num_layers),
        rope=read_rope(content),
        max_context=fields.integer("max_position_embeddings"),
        rms_eps=fields.number("rms_norm_eps"),
        swiglu_limit=fields.number("swiglu_limit"),
        mxfp4_layers=mxfp4_layers,
    )


def write_spec(spec: ModelSpec) -> dict[str, Any]:
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
    window = next((window for window in spec.windows if window is not None), 128)
    return {
        "architectures": ["GptOssForCausalLM"],
        **FIXED,
        "num_hidden_layers": spec.num_layers,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "num_local_experts": spec.num_experts,
        "num_experts_per_tok": spec.num_active,
        "vocab_size": spec.vocab_size,
        "sliding_window": window,
        "layer_types": [FULL if window is None else SLIDING for window in spec.windows],
        "rms_norm_eps": spec.rms_eps,
        "swiglu_limit": spec.swiglu_limit,
        "max_position_embeddings": spec.max_context,
        "rope_theta": rope.theta,
        "rope_scaling": scaling if rope.factor > 1 else None,
        "quantization_config": write_quantization(spec.mxfp4_layers),
    }


def _active(fields: Fields) -> int:
    """Reads the number of active experts. The field has two names; if both are given, they must agree."""
    given = [name for name in ("num_experts_per_tok", "experts_per_token") if name in fields.content]
    values = {name: fields.integer(name) for name in given or ["num_experts_per_tok"]}
    if len(set(values.values())) > 1:
        raise SpecError(f"contradiction: {', '.join(f'{name} = {value}' for name, value in values.items())}")
    return next(iter(values.values()))


def _windows(fields: Fields, num_layers: int) -> tuple[int | None, ...]:
    kinds = fields.content.get("layer_types")
    if kinds is None:
        kinds = [FULL if layer % 2 else SLIDING for layer in range(num_layers)]
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise SpecError(f"layer_types must list num_hidden_layers = {num_layers} kinds, not {shorten(kinds)}")
    for kind in kinds:
        if kind not in (SLIDING, FULL):
            raise SpecError(f"layer_types: {shorten(repr(kind))} is neither {SLIDING} nor {FULL}")
    return tuple(fields.integer("sliding_window") if kind == SLIDING else None for kind in kinds)


def read_rope(content: Mapping[str, Any]) -> RopeSpec:
    """Returns what `rope_parameters` (newer files) or `rope_theta` with `rope_scaling` (the published ones) say."""
    named = "rope_parameters" if "rope_parameters" in content else "rope_scaling"
    scaling = {} if content.get(named) is None else content[named]
    if not isinstance(scaling, Mapping):
        raise SpecError(f"{named} must be an object, not {shorten(repr(scaling))}")
    if "rope_parameters" in content and content.get("rope_scaling") not in (None, scaling):
        raise SpecError("contradiction: rope_scaling and rope_parameters are both given and differ")
    fields = Fields(scaling, f"{named}.")
    fields.reject_unknown(ROPE_FIELDS)
    theta_fields = fields if "rope_theta" in scaling else Fields(content, "")
    if "rope_theta" in scaling and content.get("rope_theta", scaling["rope_theta"]) != scaling["rope_theta"]:
        raise SpecError(
            f"contradiction: rope_theta = {shorten(content['rope_theta'])}, "
            f"{named}.rope_theta = {shorten(scaling['rope_theta'])}"
        )
    theta = theta_fields.number("rope_theta")
    if theta <= 1:
        raise SpecError(f"rope_theta = {theta:g}: must exceed 1")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return RopeSpec(theta=theta)
    if kind != "yarn":
        raise SpecError(f"{named}.rope_type = {shorten(repr(kind))}: gpt-oss has 'yarn' or 'default'")
    truncate = scaling.get("truncate", True)
    if not isinstance(truncate, bool):
        raise SpecError(f"{named}.truncate must be true or false, not {shorten(truncate)}")
    return RopeSpec(
        theta=theta,
        factor=fields.number("factor"),
        original_context=fields.integer("original_max_position_embeddings"),
        beta_fast=fields.number("beta_fast"),
        beta_slow=fields.number("beta_slow"),
        truncate=truncate,
    )

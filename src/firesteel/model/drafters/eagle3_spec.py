"""Facts of an Eagle3 head, read from its config.json: plain, NVIDIA's (`eagle_config`) or of speculators (nested).

Fields that some publishers leave out are None here; the tensors then decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firesteel.model.drafters.eagle3_rope import LlamaRope, read_llama_rope
from firesteel.model.drafters.eagle3_states import IDS, PublishedHead, find_published
from firesteel.model.drafters.errors import DrafterError
from firesteel.model.fields import Fields, SpecError
from firesteel.untrusted.json_file import read_object, shorten

NESTED = "transformer_layer_config"  # speculators: the fields of the Llama layer
EAGLE = "eagle_config"  # NVIDIA: those of the head
CURE = "is this the folder of an Eagle3 head?"
LLAMA_TYPES = (None, "llama", "eagle3", "speculators", "eagle3_speculator", "speculator_model")
ARCHITECTURES = (
    "LlamaForCausalLMEagle3",
    "Eagle3LlamaForCausalLM",
    "Eagle3DraftModel",
    "Eagle3Speculator",
    "EagleLlamaForCausalLM",
    "LlamaForCausalLM",
)
# Fields with one value that firesteel computes.
FIXED: dict[str, Any] = {
    "num_hidden_layers": 1,
    "hidden_act": "silu",
    "mlp_bias": False,
    "use_sliding_window": False,
    "use_mtp_layernorm": False,
    "use_last_layernorm": True,
    "use_input_layernorm_in_first_layer": True,
    "parallel_draft_step": 1,
    "parallel_drafting": False,
    "speculators_model_type": "eagle3",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Spec:
    """Shapes and constants of a head."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_eps: float
    rope: LlamaRope
    vocab_size: int
    draft_vocab_size: int | None
    target_hidden_size: int | None
    attention_bias: bool | None
    norm_before_residual: bool
    norm_before_fc: bool | None
    norm_each_state: bool | None  # `fc_norm`
    norm_output: bool
    ties_lm_head: bool
    state_ids: Any  # as the config has them; eagle3_states checks them
    uses_states: bool | None
    published: PublishedHead | None
    usual_acceptance: float | None  # of first drafted tokens, in heads that firesteel measured

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim


def read_eagle3_spec(directory: Path) -> Eagle3Spec:
    """Reads the config.json of a head's folder; raises DrafterError naming file and field."""
    path = directory / "config.json"
    content = read_object(path, DrafterError, CURE)
    try:
        return _parse(content, find_published(directory, content.get("_name_or_path")))
    except (SpecError, DrafterError) as error:
        raise DrafterError(f"{path}: {error}") from error


def _parse(content: Mapping[str, Any], published: PublishedHead | None) -> Eagle3Spec:
    layer = _find_object(content, NESTED) or content
    head = {**_find_object(content, EAGLE)}
    for name, value in content.items():
        if name in head and head[name] != value:
            raise DrafterError(
                f"contradiction: {name} = {shorten(repr(value))}, {EAGLE}.{name} = {shorten(repr(head[name]))}"
            )
    head |= {name: value for name, value in content.items() if name != EAGLE}
    _check_kind(head, layer)
    prefix = f"{NESTED}." if layer is not content else ""
    fields = Fields(layer, prefix)
    num_heads = fields.integer("num_attention_heads")
    hidden_size = fields.integer("hidden_size")
    spec = Eagle3Spec(
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads") if "num_key_value_heads" in layer else num_heads,
        head_dim=fields.integer("head_dim") if layer.get("head_dim") is not None else hidden_size // num_heads,
        rms_eps=fields.number("rms_norm_eps"),
        rope=read_llama_rope(layer),
        vocab_size=fields.integer("vocab_size"),
        draft_vocab_size=_find_integer(head, "draft_vocab_size"),
        target_hidden_size=_find_integer(head, "target_hidden_size"),
        attention_bias=_find_flag(layer, "attention_bias"),
        # speculators normalises first unless told otherwise, the others do not
        norm_before_residual=_find_flag(head, "norm_before_residual", "speculators_model_type" in content) is True,
        norm_before_fc=_find_flag(head, "norm_before_fc"),
        norm_each_state=_find_flag(head, "fc_norm"),
        norm_output=_find_flag(head, "norm_output") is True,
        ties_lm_head=_find_flag({**layer, **head}, "tie_word_embeddings") is True,
        state_ids=head.get(IDS),
        uses_states=_find_flag(head, "use_aux_hidden_state"),
        published=published,
        usual_acceptance=_find_share(head, "usual_acceptance"),
    )
    _check_shapes(spec)
    return spec


def _find_object(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = content.get(name)
    if value is not None and not isinstance(value, Mapping):
        raise DrafterError(f"{name} must be an object, not {shorten(repr(value))}")
    return value or {}


def _find_flag(content: Mapping[str, Any], name: str, default: bool | None = None) -> bool | None:
    value = content.get(name)
    if value is not None and not isinstance(value, bool):
        raise DrafterError(f"{name} must be true or false, not {shorten(repr(value))}")
    return default if value is None else value


def _find_integer(content: Mapping[str, Any], name: str) -> int | None:
    return None if content.get(name) is None else Fields(content, "").integer(name)


def _find_share(content: Mapping[str, Any], name: str) -> float | None:
    value = content.get(name)
    if value is not None and not (isinstance(value, float) and 0 < value < 1):
        raise DrafterError(f"{name} = {shorten(repr(value))}: must be a number between 0 and 1")
    return value


def _check_kind(head: Mapping[str, Any], layer: Mapping[str, Any]) -> None:
    """Raises for drafters of another kind, and for Eagle3 heads with parts that firesteel does not compute."""
    architectures = head.get("architectures") or ["LlamaForCausalLMEagle3"]
    if not isinstance(architectures, list) or architectures[0] not in ARCHITECTURES:
        raise DrafterError(
            f"architectures = {shorten(architectures)}: not an Eagle3 head of one Llama layer; firesteel computes "
            f"{', '.join(ARCHITECTURES[:4])}"
        )
    if layer.get("model_type") not in LLAMA_TYPES:
        raise DrafterError(
            f"model_type = {shorten(repr(layer['model_type']))}: firesteel computes heads of a 'llama' layer"
        )
    for name, only in FIXED.items():
        value = head.get(name, layer.get(name))
        if value is not None and value != only:
            raise DrafterError(f"{name} = {shorten(repr(value))}: firesteel computes heads with {only!r}")
    kinds = layer.get("layer_types")
    if kinds is not None and kinds != ["full_attention"]:
        raise DrafterError(f"layer_types = {shorten(kinds)}: firesteel computes heads with ['full_attention']")


def _check_shapes(spec: Eagle3Spec) -> None:
    if spec.num_heads % spec.num_kv_heads:
        raise DrafterError(
            f"num_attention_heads = {spec.num_heads} is not a multiple of num_key_value_heads = {spec.num_kv_heads}"
        )
    if spec.head_dim % 2 or not spec.head_dim:
        raise DrafterError(f"head_dim = {spec.head_dim}: rope needs an even number")

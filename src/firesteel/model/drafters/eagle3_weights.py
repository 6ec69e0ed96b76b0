"""Weights of an Eagle3 head, from the public names; what fits neither its config nor the target is an error.

Shape letters: H hidden of the head, N states that fc reads, F their width together, Q query heads, K kv heads, D
head dim, I intermediate, V vocabulary of the target, W of the head.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from firesteel.device import DeviceSpec
from firesteel.model.drafters.eagle3_spec import Eagle3Spec
from firesteel.model.drafters.eagle3_states import TargetStates, find_states
from firesteel.model.drafters.errors import DrafterError
from firesteel.model.drafters.head_tensors import CURE, HeadTensors
from firesteel.model.spec import ModelSpec

LAYER = "layers.0."
# Masks and copies of the target's tensors, which some trainers store too.
NOT_NEEDED = re.compile(r"t2d|verifier_.*|.*rotary_emb\.inv_freq")


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Weights:
    """Weights in bf16; None where the head has none, or shares the target's."""

    states: TargetStates
    embedding: Tensor | None  # [V, H]
    fc: Tensor | None  # [H, F]
    input_norm: Tensor | None  # [F], of all states side by side
    state_norms: Tensor | None  # [N, F / N]
    embed_norm: Tensor  # [H]
    hidden_norm: Tensor  # [H]
    qkv: Tensor  # [(Q + 2K) D, 2H]
    qkv_bias: Tensor | None
    o: Tensor  # [H, Q D]
    o_bias: Tensor | None
    post_norm: Tensor  # [H]
    gate_up: Tensor  # [2I, H]
    down: Tensor  # [H, I]
    norm: Tensor  # [H]
    lm_head: Tensor | None  # [W, H]
    target_ids: Tensor | None  # [W] int64, the target's id of each of the head's; None: the same ids


def load_eagle3_weights(directory: Path, spec: Eagle3Spec, target: ModelSpec, device: DeviceSpec) -> Eagle3Weights:
    """Loads a head for `target`; names, shapes, types and memory are checked before any weight is read."""
    _check_target(directory, spec, target)
    tensors = HeadTensors.open(directory, device, _rename)
    hidden = spec.hidden_size
    num_states = _count_states(tensors, target.hidden_size) if "fc.weight" in tensors else None
    width = (num_states or 1) * target.hidden_size
    if num_states is None and hidden != target.hidden_size:
        raise DrafterError(
            f"{directory}: hidden_size = {hidden}, the target has {target.hidden_size} and fc.weight is missing; "
            f"{CURE}"
        )
    try:
        states = find_states(spec.state_ids, spec.uses_states, spec.published, num_states, target.num_layers)
    except DrafterError as error:
        raise DrafterError(f"{directory / 'config.json'}: {error}") from error
    target_ids = _take_target_ids(tensors, spec, target)
    weights = Eagle3Weights(
        states=states,
        embedding=_take_embedding(tensors, spec, target),
        fc=None if num_states is None else tensors.take("fc.weight", hidden, width),
        input_norm=_take_input_norm(tensors, spec, width),
        state_norms=_take_state_norms(tensors, spec, num_states or 1, target.hidden_size),
        embed_norm=tensors.take(f"{LAYER}input_layernorm.weight", hidden),
        hidden_norm=tensors.take(f"{LAYER}hidden_norm.weight", hidden),
        qkv=_take_qkv(tensors, spec, "weight", 2 * hidden),
        qkv_bias=_take_qkv(tensors, spec, "bias") if _has_bias(tensors, spec) else None,
        o=tensors.take(f"{LAYER}self_attn.o_proj.weight", hidden, spec.q_size),
        o_bias=_take_optional(tensors, f"{LAYER}self_attn.o_proj.bias", hidden),
        post_norm=tensors.take(f"{LAYER}post_attention_layernorm.weight", hidden),
        gate_up=_take_gate_up(tensors, spec),
        down=tensors.take(f"{LAYER}mlp.down_proj.weight", hidden, spec.intermediate_size),
        norm=tensors.take("norm.weight", hidden),
        lm_head=_take_lm_head(tensors, spec, target),
        target_ids=None if target_ids is None else target_ids.to(device.torch_device),
    )
    tensors.read()
    return weights


def _rename(name: str) -> str | None:
    ours = name.removeprefix("model.")
    ours = LAYER + ours.removeprefix("midlayer.") if ours.startswith("midlayer.") else ours
    return None if NOT_NEEDED.fullmatch(ours) else ours


def _check_target(directory: Path, spec: Eagle3Spec, target: ModelSpec) -> None:
    config = directory / "config.json"
    if spec.target_hidden_size not in (None, target.hidden_size):
        raise DrafterError(
            f"{config}: target_hidden_size = {spec.target_hidden_size}, but the target's is {target.hidden_size}: "
            "this is the head of another model"
        )
    if spec.vocab_size != target.vocab_size:
        raise DrafterError(
            f"{config}: vocab_size = {spec.vocab_size}, but the target's is {target.vocab_size}: this is the head "
            "of another model"
        )


def _count_states(tensors: HeadTensors, target_hidden: int) -> int:
    shape = tensors.shape("fc.weight")
    if len(shape) != 2 or not shape[1] or shape[1] % target_hidden:
        raise DrafterError(
            f"{tensors.stored['fc.weight'].file}: tensor fc.weight has shape {shape}, which reads no whole number "
            f"of the target's states of {target_hidden}: this is the head of another model"
        )
    return shape[1] // target_hidden


def _take_embedding(tensors: HeadTensors, spec: Eagle3Spec, target: ModelSpec) -> Tensor | None:
    embedding = _take_optional(tensors, "embed_tokens.weight", target.vocab_size, spec.hidden_size)
    if embedding is None and spec.hidden_size != target.hidden_size:
        raise DrafterError(
            f"tensor embed_tokens.weight is missing from the head in {tensors.directory}, and the target's cannot "
            f"be shared: hidden_size = {spec.hidden_size}, the target's is {target.hidden_size}"
        )
    return embedding


def _take_input_norm(tensors: HeadTensors, spec: Eagle3Spec, width: int) -> Tensor | None:
    _check_flag(tensors, "norm_before_fc", spec.norm_before_fc, "input_norm.weight")
    if spec.norm_before_fc or "input_norm.weight" in tensors:
        return tensors.take("input_norm.weight", width)
    return None


def _take_state_norms(tensors: HeadTensors, spec: Eagle3Spec, num_states: int, width: int) -> Tensor | None:
    _check_flag(tensors, "fc_norm", spec.norm_each_state, "fc_norm.0.weight")
    if not spec.norm_each_state and "fc_norm.0.weight" not in tensors:
        return None
    names = [f"fc_norm.{number}.weight" for number in range(num_states)]
    return tensors.take_rows(names, [width] * num_states).view(num_states, width)


def _check_flag(tensors: HeadTensors, flag: str, value: bool | None, tensor: str) -> None:
    if value is False and tensor in tensors:
        raise DrafterError(
            f"{tensors.directory / 'config.json'}: {flag} is false, but the head has the tensor {tensor}: set it "
            "to true, or take config and weights from one download"
        )


def _has_bias(tensors: HeadTensors, spec: Eagle3Spec) -> bool:
    names = [f"{LAYER}self_attn.{name}.bias" for name in ("qkv_proj", "q_proj", "k_proj", "v_proj")]
    given = [name for name in names if name in tensors]
    if given:
        _check_flag(tensors, "attention_bias", spec.attention_bias, given[0])
    return bool(given) or spec.attention_bias is True


def _take_qkv(tensors: HeadTensors, spec: Eagle3Spec, kind: str, *columns: int) -> Tensor:
    fused, rows = f"{LAYER}self_attn.qkv_proj.{kind}", [spec.q_size, spec.kv_size, spec.kv_size]
    if fused in tensors:
        return tensors.take(fused, sum(rows), *columns)
    return tensors.take_rows([f"{LAYER}self_attn.{name}_proj.{kind}" for name in "qkv"], rows, *columns)


def _take_gate_up(tensors: HeadTensors, spec: Eagle3Spec) -> Tensor:
    fused, rows = f"{LAYER}mlp.gate_up_proj.weight", spec.intermediate_size
    if fused in tensors:
        return tensors.take(fused, 2 * rows, spec.hidden_size)
    names = [f"{LAYER}mlp.{name}_proj.weight" for name in ("gate", "up")]
    return tensors.take_rows(names, [rows, rows], spec.hidden_size)


def _take_lm_head(tensors: HeadTensors, spec: Eagle3Spec, target: ModelSpec) -> Tensor | None:
    num_rows = _count_drafted(spec, target)
    if "lm_head.weight" in tensors:
        return tensors.take("lm_head.weight", num_rows, spec.hidden_size)
    if num_rows != target.vocab_size or (spec.hidden_size != target.hidden_size and not spec.ties_lm_head):
        raise DrafterError(
            f"tensor lm_head.weight is missing from the head in {tensors.directory}, and the target's cannot be "
            f"shared: the head has {num_rows} tokens and hidden_size = {spec.hidden_size}, the target "
            f"{target.vocab_size} and {target.hidden_size}"
        )
    return None


def _count_drafted(spec: Eagle3Spec, target: ModelSpec) -> int:
    return target.vocab_size if spec.draft_vocab_size is None else spec.draft_vocab_size


def _take_target_ids(tensors: HeadTensors, spec: Eagle3Spec, target: ModelSpec) -> Tensor | None:
    """Returns the target's id of each token of the head; `d2t` stores how much larger it is."""
    num_drafted = _count_drafted(spec, target)
    if "d2t" not in tensors:
        if num_drafted != target.vocab_size:
            raise DrafterError(
                f"tensor d2t is missing from the head in {tensors.directory}: draft_vocab_size = {num_drafted}, "
                f"the target has {target.vocab_size} tokens, and nothing says which of them; {CURE}"
            )
        return None
    ids = torch.arange(num_drafted) + tensors.take_integers("d2t", num_drafted)
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= target.vocab_size:
        raise DrafterError(
            f"{tensors.stored['d2t'].file}: tensor d2t leads to token {low if low < 0 else high}, but the target "
            f"has {target.vocab_size} tokens: it must hold the differences between ids of target and head; {CURE}"
        )
    if len(ids.unique()) < num_drafted:
        raise DrafterError(
            f"{tensors.stored['d2t'].file}: tensor d2t leads {num_drafted} tokens to {len(ids.unique())} of the "
            f"target: it must hold the differences between ids of target and head; {CURE}"
        )
    return ids


def _take_optional(tensors: HeadTensors, name: str, *shape: int) -> Tensor | None:
    return tensors.take(name, *shape) if name in tensors else None

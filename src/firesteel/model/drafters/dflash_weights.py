"""The weights of a DFlash drafter as tensors, and how they are loaded and saved.

Keys and values of all layers are projected from the same features, so these matrices are stacked. `named_tensors`
is the only map between the public names and our storage.

Shape letters: L layers, H hidden, F features, Q query heads, K kv heads, D head dim, I intermediate.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from firesteel.device import DeviceSpec
from firesteel.model.checkpoint import save_tensors, write_json
from firesteel.model.drafters.dflash_spec import DAMAGED, OTHER_DRAFTER, DFlashSpec, write_dflash_spec
from firesteel.model.drafters.errors import DrafterError
from firesteel.model.fill import fill
from firesteel.model.shards import SINGLE, CheckpointError, StoredTensor, find_tensors
from firesteel.model.spec import ModelSpec
from firesteel.model.weights import check_memory
from firesteel.untrusted.json_file import shorten

READERS = 4  # threads
PREFIX = "model."  # some checkpoints put it before every name


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlashLayer:
    """Weights of one layer but those of its keys and values."""

    input_norm: Tensor  # [H]
    q: Tensor  # [Q D, H]
    q_bias: Tensor | None
    q_norm: Tensor  # [D]
    k_norm: Tensor  # [D]
    o: Tensor  # [H, Q D]
    o_bias: Tensor | None
    post_norm: Tensor  # [H]
    gate_up: Tensor  # [2 I, H], all rows of gate first
    down: Tensor  # [H, I]


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlashWeights:
    """All weights of a drafter."""

    fc: Tensor  # [H, F]
    feature_norm: Tensor  # [H]
    kv: Tensor  # [L, 2, K D, H], the keys' matrix of a layer before the values'
    kv_bias: Tensor | None  # [L, 2, K D]
    layers: list[DFlashLayer]
    norm: Tensor  # [H]


def empty_dflash_weights(spec: DFlashSpec, device: torch.device) -> DFlashWeights:
    """Returns uninitialised storage; on the meta device it takes no memory and still has every shape."""

    def bf16(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.bfloat16, device=device)

    def bias(*shape: int) -> Tensor | None:
        return bf16(*shape) if spec.has_bias else None

    hidden, inter, dim = spec.hidden_size, spec.intermediate_size, spec.head_dim
    layers = [
        DFlashLayer(
            input_norm=bf16(hidden),
            q=bf16(spec.q_size, hidden),
            q_bias=bias(spec.q_size),
            q_norm=bf16(dim),
            k_norm=bf16(dim),
            o=bf16(hidden, spec.q_size),
            o_bias=bias(hidden),
            post_norm=bf16(hidden),
            gate_up=bf16(2 * inter, hidden),
            down=bf16(hidden, inter),
        )
        for _ in range(spec.num_layers)
    ]
    return DFlashWeights(
        fc=bf16(hidden, spec.num_features),
        feature_norm=bf16(hidden),
        kv=bf16(spec.num_layers, 2, spec.kv_size, hidden),
        kv_bias=bias(spec.num_layers, 2, spec.kv_size),
        layers=layers,
        norm=bf16(hidden),
    )


def named_dflash_tensors(weights: DFlashWeights) -> dict[str, Tensor]:
    """Returns views of the storage by the names of the public checkpoints, in their shapes."""
    named = {
        "fc.weight": weights.fc,
        "hidden_norm.weight": weights.feature_norm,
        "norm.weight": weights.norm,
    }
    for number, layer in enumerate(weights.layers):
        gate, up = layer.gate_up.chunk(2)
        kv, kv_bias = weights.kv[number], None if weights.kv_bias is None else weights.kv_bias[number]
        tensors = {
            "input_layernorm.weight": layer.input_norm,
            "self_attn.q_proj.weight": layer.q,
            "self_attn.q_proj.bias": layer.q_bias,
            "self_attn.k_proj.weight": kv[0],
            "self_attn.k_proj.bias": None if kv_bias is None else kv_bias[0],
            "self_attn.v_proj.weight": kv[1],
            "self_attn.v_proj.bias": None if kv_bias is None else kv_bias[1],
            "self_attn.q_norm.weight": layer.q_norm,
            "self_attn.k_norm.weight": layer.k_norm,
            "self_attn.o_proj.weight": layer.o,
            "self_attn.o_proj.bias": layer.o_bias,
            "post_attention_layernorm.weight": layer.post_norm,
            "mlp.gate_proj.weight": gate,
            "mlp.up_proj.weight": up,
            "mlp.down_proj.weight": layer.down,
        }
        named |= {f"layers.{number}.{name}": tensor for name, tensor in tensors.items() if tensor is not None}
    return named


def load_dflash_weights(directory: Path, spec: DFlashSpec, device: DeviceSpec) -> DFlashWeights:
    """Loads the weights of a drafter; names, shapes, types and memory are checked before data is read."""
    try:
        stored = {name.removeprefix(PREFIX): tensor for name, tensor in find_tensors(directory).items()}
        planned = named_dflash_tensors(empty_dflash_weights(spec, torch.device("meta")))
        _check_tensors(stored, planned, directory)
        check_memory(sum(tensor.nbytes for tensor in planned.values()), device, 0.0)
        weights = empty_dflash_weights(spec, device.torch_device)
        fill(named_dflash_tensors(weights), stored, workers=READERS)
    except CheckpointError as error:
        raise DrafterError(f"drafter in {directory}: {error}") from error
    return weights


def save_dflash(directory: Path, spec: DFlashSpec, target: ModelSpec, weights: DFlashWeights) -> None:
    """Writes a drafter in the public format: config.json and one file of tensors."""
    directory.mkdir(parents=True, exist_ok=True)
    named = {name: tensor.detach().contiguous().cpu() for name, tensor in named_dflash_tensors(weights).items()}
    save_tensors(directory / SINGLE, named)
    write_json(directory / "config.json", write_dflash_spec(spec, target))


def _check_tensors(stored: dict[str, StoredTensor], planned: dict[str, Tensor], directory: Path) -> None:
    for name, want in planned.items():
        if name not in stored:
            raise DrafterError(f"tensor {name} is missing from the drafter in {directory}; {DAMAGED}")
        tensor = stored[name]
        if tensor.shape != tuple(want.shape):
            raise DrafterError(
                f"{tensor.file}: tensor {name} has shape {tensor.shape}, its config.json says {tuple(want.shape)}: "
                f"{OTHER_DRAFTER}"
            )
        if tensor.dtype != want.dtype:
            raise DrafterError(
                f"{tensor.file}: tensor {name} is {tensor.dtype}, expected {want.dtype}: convert the drafter"
            )
    if extra := sorted(set(stored) - set(planned)):
        raise DrafterError(
            f"{stored[extra[0]].file}: tensor {shorten(extra[0])} does not belong to a DFlash drafter "
            f"({len(extra)} extra); choose another drafter"
        )

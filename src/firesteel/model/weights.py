"""The weights of a gpt-oss as tensors, and how they are loaded from a checkpoint.

Experts stay packed in MXFP4, as do the dense layers that the spec names. q, k and v are read straight into one
fused matrix. `named_tensors` is the only map between the public names and our storage: loading, checking, saving
and random weights all use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from firesteel.device import GIB, DeviceSpec, available_bytes
from firesteel.formats import e8m0
from firesteel.kernels.libraries.orders import OrderedExperts
from firesteel.kernels.operands.weights import Experts, Mxfp4Weight
from firesteel.model.fill import CODES, SCALES, LoadReport, fill, room_bytes
from firesteel.model.reader import Progress
from firesteel.model.shards import CheckpointError, StoredTensor, find_tensors
from firesteel.model.spec import GROUP, ModelSpec

DenseWeight = Tensor | Mxfp4Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """Weights of one transformer layer."""

    input_norm: Tensor  # [H]
    qkv: DenseWeight  # [(Q + 2K) D, H]
    qkv_bias: Tensor
    o: DenseWeight  # [H, Q D]
    o_bias: Tensor
    sinks: Tensor  # [Q]
    post_norm: Tensor  # [H]
    router: Tensor  # [E, H]
    router_bias: Tensor
    experts: Experts | OrderedExperts  # in the checkpoint's order, unless moe_matmul reads another

    @property
    def plain_experts(self) -> Experts:
        """The experts of a model that holds them in the checkpoint's order."""
        assert isinstance(self.experts, Experts), "check_expert_order must refuse this combination"
        return self.experts


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """All weights of the network."""

    embedding: Tensor  # [V, H]
    layers: list[LayerWeights]
    norm: Tensor  # [H]
    lm_head: DenseWeight  # [V, H]; a rank of several holds some of the rows


def empty_weights(spec: ModelSpec, device: torch.device, *, lm_head_rows: int | None = None) -> Weights:
    """Returns uninitialised storage; on the meta device it takes no memory and still has every shape.

    `lm_head_rows` is the number of rows of lm_head if it is not the whole vocabulary.
    """

    def bf16(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.bfloat16, device=device)

    def u8(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.uint8, device=device)

    def dense(layer: str, rows: int, columns: int) -> DenseWeight:
        if layer not in spec.mxfp4_layers:
            return bf16(rows, columns)
        return Mxfp4Weight(codes=u8(rows, columns // 2), scales=u8(rows, columns // GROUP))

    hidden, inter, experts = spec.hidden_size, spec.intermediate_size, spec.num_experts
    qkv_size = spec.q_size + 2 * spec.kv_size
    layers = [
        LayerWeights(
            input_norm=bf16(hidden),
            qkv=dense("qkv", qkv_size, hidden),
            qkv_bias=bf16(qkv_size),
            o=dense("o", hidden, spec.q_size),
            o_bias=bf16(hidden),
            sinks=bf16(spec.num_heads),
            post_norm=bf16(hidden),
            router=bf16(experts, hidden),
            router_bias=bf16(experts),
            experts=Experts(
                gate_up_codes=u8(experts, 2 * inter, hidden // 2),
                gate_up_scales=u8(experts, 2 * inter, hidden // GROUP),
                gate_up_bias=bf16(experts, 2 * inter),
                down_codes=u8(experts, hidden, inter // 2),
                down_scales=u8(experts, hidden, inter // GROUP),
                down_bias=bf16(experts, hidden),
            ),
        )
        for _ in range(spec.num_layers)
    ]
    return Weights(
        embedding=bf16(spec.vocab_size, hidden),
        layers=layers,
        norm=bf16(hidden),
        lm_head=dense("lm_head", spec.vocab_size if lm_head_rows is None else lm_head_rows, hidden),
    )


def named_tensors(weights: Weights, spec: ModelSpec) -> dict[str, Tensor]:
    """Returns views of the storage by the names of the public checkpoint, in its shapes."""
    named = {
        "model.embed_tokens.weight": weights.embedding,
        "model.norm.weight": weights.norm,
        **_named_dense("lm_head.weight", weights.lm_head),
    }
    for number, layer in enumerate(weights.layers):
        for name, tensor in _named_layer(layer, spec).items():
            named[f"model.layers.{number}.{name}"] = tensor
    return named


def _named_layer(layer: LayerWeights, spec: ModelSpec) -> dict[str, Tensor]:
    sizes = [spec.q_size, spec.kv_size, spec.kv_size]
    q, k, v = _split_rows(layer.qkv, sizes)
    q_bias, k_bias, v_bias = layer.qkv_bias.split(sizes)
    experts = layer.experts if isinstance(layer.experts, Experts) else layer.experts.unpack()
    return {
        "input_layernorm.weight": layer.input_norm,
        **_named_dense("self_attn.q_proj.weight", q),
        "self_attn.q_proj.bias": q_bias,
        **_named_dense("self_attn.k_proj.weight", k),
        "self_attn.k_proj.bias": k_bias,
        **_named_dense("self_attn.v_proj.weight", v),
        "self_attn.v_proj.bias": v_bias,
        **_named_dense("self_attn.o_proj.weight", layer.o),
        "self_attn.o_proj.bias": layer.o_bias,
        "self_attn.sinks": layer.sinks,
        "post_attention_layernorm.weight": layer.post_norm,
        "mlp.router.weight": layer.router,
        "mlp.router.bias": layer.router_bias,
        "mlp.experts.gate_up_proj_blocks": experts.gate_up_codes.unflatten(-1, (-1, GROUP // 2)),
        "mlp.experts.gate_up_proj_scales": experts.gate_up_scales,
        "mlp.experts.gate_up_proj_bias": experts.gate_up_bias,
        "mlp.experts.down_proj_blocks": experts.down_codes.unflatten(-1, (-1, GROUP // 2)),
        "mlp.experts.down_proj_scales": experts.down_scales,
        "mlp.experts.down_proj_bias": experts.down_bias,
    }


def _named_dense(name: str, weight: DenseWeight) -> dict[str, Tensor]:
    """Names a dense weight; MXFP4 has the layout of the experts: groups of 16 bytes with a scale each."""
    if isinstance(weight, Tensor):
        return {name: weight}
    return {name + CODES: weight.codes.unflatten(-1, (-1, GROUP // 2)), name + SCALES: weight.scales}


def _split_rows(weight: DenseWeight, sizes: list[int]) -> list[DenseWeight]:
    if isinstance(weight, Tensor):
        return list(weight.split(sizes))
    parts = zip(weight.codes.split(sizes), weight.scales.split(sizes), strict=True)
    return [Mxfp4Weight(codes=codes, scales=scales) for codes, scales in parts]


def weight_bytes(spec: ModelSpec) -> int:
    """Returns the bytes of all weights."""
    return sum(tensor.nbytes for tensor in named_tensors(empty_weights(spec, torch.device("meta")), spec).values())


def load_weights(
    directory: Path,
    spec: ModelSpec,
    device: DeviceSpec,
    *,
    workers: int,
    reserve_gib: float,
    progress: Progress | None = None,
    held: ModelSpec | None = None,
) -> tuple[Weights, LoadReport]:
    """Loads the weights of a checkpoint described by `spec`.

    `held`, if given, is the same spec with more layers in MXFP4, which are quantised here. Names, shapes, types and
    memory are checked before the first byte of data is read. At most `room_bytes` are used beyond the weights.
    """
    stored = find_tensors(directory)
    check_tensors(stored, spec, directory)
    return read_weights(
        stored,
        spec if held is None else held,
        device,
        workers=workers,
        reserve_gib=reserve_gib,
        progress=progress,
    )


def read_weights(
    stored: Mapping[str, StoredTensor],
    held: ModelSpec,
    device: DeviceSpec,
    *,
    workers: int,
    reserve_gib: float,
    progress: Progress | None = None,
    lm_head_rows: int | None = None,
) -> tuple[Weights, LoadReport]:
    """Reads tensors of a checkpoint, or the parts of them that a rank holds, into the storage of `held`.

    Tensors that are not in `stored`, and rows of lm_head beyond those stored, are zero.
    """
    planned = named_tensors(empty_weights(held, torch.device("meta"), lm_head_rows=lm_head_rows), held)
    needed = sum(tensor.nbytes for tensor in planned.values()) + room_bytes(planned, stored)
    check_memory(needed, device, reserve_gib)
    weights = empty_weights(held, device.torch_device, lm_head_rows=lm_head_rows)
    targets = named_tensors(weights, held)
    for name, tensor in targets.items():
        source = stored.get(name, stored.get(name.removesuffix(CODES).removesuffix(SCALES)))
        num_rows = 0 if source is None else source.shape[0]
        tensor[num_rows:].zero_()
    trimmed = {
        name: tensor[: stored[name].shape[0]] if name in stored else tensor for name, tensor in targets.items()
    }
    report = fill(trimmed, stored, workers=workers, progress=progress)
    check_scales(targets, stored)
    return weights, report


def check_scales(targets: Mapping[str, Tensor], stored: Mapping[str, StoredTensor]) -> None:
    """Raises if a scale that was read from the checkpoint is NaN."""
    for name, tensor in targets.items():
        if name.endswith(SCALES) and name in stored:
            try:
                e8m0.check(tensor)
            except ValueError as error:
                raise CheckpointError(f"{stored[name].file}: tensor {name}: {error}") from error


def check_tensors(stored: Mapping[str, StoredTensor], spec: ModelSpec, directory: Path) -> None:
    """Raises if a tensor is missing, is not expected, or has the wrong type or shape."""
    expected = named_tensors(empty_weights(spec, torch.device("meta")), spec)
    for name, tensor in stored.items():
        if name.endswith(("weight_scale_2", "input_scale")) or (
            name.endswith("_scales") and tensor.dtype is torch.float8_e4m3fn
        ):
            raise CheckpointError(
                f"{tensor.file}: tensor {name} belongs to NVFP4 (16 values per group, E4M3 scales); "
                "firesteel computes MXFP4: use the published MXFP4 checkpoint"
            )
    for name, want in expected.items():
        if name not in stored:
            raise CheckpointError(f"tensor {name} is missing from the checkpoint in {directory}")
        tensor = stored[name]
        if tensor.dtype != want.dtype:
            raise CheckpointError(f"{tensor.file}: tensor {name} is {tensor.dtype}, expected {want.dtype}")
        if tensor.shape != tuple(want.shape):
            raise CheckpointError(
                f"{tensor.file}: tensor {name} has shape {tensor.shape}, expected {tuple(want.shape)}"
            )
    if extra := sorted(set(stored) - set(expected)):
        raise CheckpointError(
            f"{stored[extra[0]].file}: tensor {extra[0]} does not belong to this model ({len(extra)} extra)"
        )


def check_memory(needed: int, device: DeviceSpec, reserve_gib: float) -> None:
    """Raises if the weights do not fit: on unified memory an overcommitted GPU freezes the whole host."""
    available = available_bytes(device)
    if needed + reserve_gib * GIB > available:
        raise CheckpointError(
            f"the weights take {needed / GIB:.1f} GiB and {reserve_gib:.1f} GiB must stay free, but {device.name} "
            f"has {available / GIB:.1f} GiB available: free memory, choose a smaller model or another --device, "
            "or lower --memory-reserve-gib"
        )

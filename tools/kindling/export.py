"""Writes and reads a trained network as a checkpoint in the public layout (experts in MXFP4, the rest in bf16)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from torch import Tensor

from firesteel.chat.harmony import Harmony
from firesteel.chat.tokenizer import Tokenizer
from firesteel.device import find_device
from firesteel.formats import mxfp4
from firesteel.kernels.operands.weights import Experts as PackedExperts
from firesteel.model.checkpoint import save_checkpoint
from firesteel.model.weights import LayerWeights, Weights, load_weights
from kindling.network import QUANTIZE_RULE, Experts, Layer, Network

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def export_checkpoint(network: Network, tokenizer: Path, directory: Path) -> None:
    save_checkpoint(directory, network.spec, packed_weights(network))
    for name in TOKENIZER_FILES:
        shutil.copyfile(tokenizer / name, directory / name)
    loaded = Tokenizer.load(tokenizer)
    generation = {
        "bos_token_id": loaded.special_ids["<|startoftext|>"],
        "pad_token_id": loaded.special_ids["<|endoftext|>"],
        "eos_token_id": sorted(Harmony(loaded).stop_token_ids),
        "do_sample": False,
    }
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")


@torch.no_grad()
def packed_weights(network: Network) -> Weights:
    return Weights(
        embedding=_bf16(network.embedding),
        layers=[_layer(layer) for layer in network.layers],
        norm=_bf16(network.norm),
        lm_head=_bf16(network.lm_head),
    )


@torch.no_grad()
def import_checkpoint(network: Network, directory: Path) -> None:
    """Loads a checkpoint into the network, so that training can continue from it."""
    weights, _ = load_weights(directory, network.spec, find_device("cpu"), workers=2, reserve_gib=0.0)
    for name in ("embedding", "norm", "lm_head"):
        getattr(network, name).copy_(getattr(weights, name))
    for layer, stored in zip(network.layers, weights.layers, strict=True):
        for name in ("input_norm", "post_norm"):
            getattr(layer, name).copy_(getattr(stored, name))
        for name in ("qkv", "qkv_bias", "o", "o_bias", "sinks"):
            getattr(layer.attention, name).copy_(getattr(stored, name))
        for name in ("router", "router_bias"):
            getattr(layer.experts, name).copy_(getattr(stored, name))
        packed = stored.experts
        layer.experts.gate_up.copy_(mxfp4.dequantize(packed.gate_up_codes, packed.gate_up_scales))
        layer.experts.down.copy_(mxfp4.dequantize(packed.down_codes, packed.down_scales))
        layer.experts.gate_up_bias.copy_(packed.gate_up_bias)
        layer.experts.down_bias.copy_(packed.down_bias)


def _layer(layer: Layer) -> LayerWeights:
    attention, experts = layer.attention, layer.experts
    return LayerWeights(
        input_norm=_bf16(layer.input_norm),
        qkv=_bf16(attention.qkv),
        qkv_bias=_bf16(attention.qkv_bias),
        o=_bf16(attention.o),
        o_bias=_bf16(attention.o_bias),
        sinks=_bf16(attention.sinks),
        post_norm=_bf16(layer.post_norm),
        router=_bf16(experts.router),
        router_bias=_bf16(experts.router_bias),
        experts=_experts(experts),
    )


def _experts(experts: Experts) -> PackedExperts:
    gate_up = mxfp4.quantize(experts.gate_up.cpu(), QUANTIZE_RULE)
    down = mxfp4.quantize(experts.down.cpu(), QUANTIZE_RULE)
    return PackedExperts(
        gate_up_codes=gate_up[0],
        gate_up_scales=gate_up[1],
        gate_up_bias=_bf16(experts.gate_up_bias),
        down_codes=down[0],
        down_scales=down[1],
        down_bias=_bf16(experts.down_bias),
    )


def _bf16(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.bfloat16)

"""Builds our network for one rank of vLLM, from vLLM's configuration and our settings (FIRESTEEL_* variables)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import hf_hub_download, snapshot_download
from torch import Tensor

from firesteel.config import Config, parse_layers
from firesteel.device import DeviceSpec, find_device
from firesteel.engine.cache.kv_cache import find_dtype
from firesteel.engine.cache.kv_scales import find_scales
from firesteel.engine.invariance import check_invariance
from firesteel.engine.library_needs import check_capture, check_dense_order, check_expert_order, order_experts
from firesteel.engine.load import LOAD_WORKERS, choose_fused, choose_kernels
from firesteel.engine.step.step_store import FusedOps
from firesteel.kernels.tiles.tuned import NONE, load_tuned, use_options
from firesteel.model.gpt_oss import GptOss, Ranks
from firesteel.model.precision import held_layers
from firesteel.model.spec import ModelSpec, read_spec
from firesteel.model.synthetic import synthetic_weights
from firesteel.model.weights import Weights
from firesteel.vllm_plugin.options.our_settings import find_config
from firesteel.vllm_plugin.sharding import Shard, load_shard, synthetic_shard

DUMMY = "dummy"  # vLLM's name for random weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """Choices made before any weight is read."""

    stored: ModelSpec  # as in the checkpoint
    held: ModelSpec  # the part that this rank holds
    shard: Shard
    device: DeviceSpec
    kv_dtype: torch.dtype
    config: Config
    model: GptOss
    fused: FusedOps | None


def assemble(vllm_config: Any, *, rank: int, num_ranks: int, add: Callable[[Tensor], Tensor]) -> Assembly:
    """Chooses kernels for a rank; raises for settings that do not fit together.

    `add` returns the sum of a tensor over all ranks.
    """
    config = find_config(vllm_config, is_first=rank == 0)
    stored = read_spec(find_folder(vllm_config.model_config))
    layers = held_layers(stored.mxfp4_layers, parse_layers(config.kernels.mxfp4_layers))
    shard = Shard(whole=replace(stored, mxfp4_layers=layers), rank=rank, size=num_ranks)
    held = shard.spec
    device = find_device(f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu")
    device.use()
    check_invariance(config.kernels, num_ranks=num_ranks)
    tuned = load_tuned(NONE if config.kernels.batch_invariant else config.kernels.tiles_file, device)
    use_options(tuned.options)
    kernels = choose_kernels(device, config)
    fused = choose_fused(device, config, kernels.ledger, held.mxfp4_layers)
    check_expert_order(held, kernels, is_fused=fused is not None)
    check_dense_order(kernels)
    check_capture(kernels, config.kernels, device)
    model = GptOss(
        held,
        shard.empty_weights(torch.device("meta")),
        kernels,
        device,
        max_context=vllm_config.model_config.max_model_len,
        sinks=config.kernels.sinks,
        activation=config.kernels.activation,
        tile=config.kernels.tile,
        tuned=tuned,
        kv_scales=find_scales(config.cache, held.num_layers),
        ranks=Ranks(is_first=rank == 0, add=add) if num_ranks > 1 else None,
    )
    return Assembly(
        stored=stored,
        held=held,
        shard=shard,
        device=device,
        kv_dtype=find_dtype(config.cache.kv_dtype, device),
        config=config,
        model=model,
        fused=fused,
    )


def find_folder(model_config: Any) -> Path:
    """Returns the folder of the checkpoint, in which vLLM has put at least the configuration."""
    if Path(model_config.model).is_dir():
        return Path(model_config.model)
    return Path(hf_hub_download(model_config.model, "config.json", revision=model_config.revision)).parent


def find_weights(vllm_config: Any) -> Path:
    """Returns the folder in which vLLM has put the checkpoint's weights: with --download-dir, not the usual one."""
    model = vllm_config.model_config
    if Path(model.model).is_dir():
        return Path(model.model)
    directory = vllm_config.load_config.download_dir
    return Path(snapshot_download(model.model, revision=model.revision, cache_dir=directory, local_files_only=True))


def random_weights(assembly: Assembly, seed: int) -> Weights:
    """Returns random weights, for vLLM's load format `dummy`."""
    if assembly.shard.size == 1:
        weights = synthetic_weights(assembly.held, assembly.device, seed=seed)
    else:
        weights = synthetic_shard(assembly.shard, assembly.device, seed=seed)
    order_experts(weights, assembly.model.kernels)
    return weights


def read_weights(assembly: Assembly, directory: Path) -> tuple[Weights, float]:
    """Reads the rank's part of a checkpoint folder, in parallel; returns it and the seconds that it took."""
    start = time.perf_counter()
    weights, _ = load_shard(
        directory, assembly.stored, assembly.shard, assembly.device, workers=LOAD_WORKERS, reserve_gib=0.0
    )
    order_experts(weights, assembly.model.kernels)
    return weights, time.perf_counter() - start

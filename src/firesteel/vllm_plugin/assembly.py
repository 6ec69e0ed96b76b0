"""Builds our network for one rank of vLLM, from vLLM's configuration and our settings (FIRESTEEL_* variables)."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import hf_hub_download

from firesteel.config import Config, parse_layers, resolve
from firesteel.device import DeviceSpec, find_device
from firesteel.engine.load import LOAD_WORKERS, choose_fused, choose_kernels
from firesteel.engine.step.step_store import FusedOps
from firesteel.kernels.tiles.tuned import load_tuned, use_options
from firesteel.model.gpt_oss import GptOss
from firesteel.model.precision import held_layers
from firesteel.model.spec import ModelSpec, read_spec
from firesteel.model.synthetic import synthetic_weights
from firesteel.model.weights import Weights, empty_weights, load_weights

DUMMY = "dummy"  # vLLM's name for random weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """Choices made before any weight is read."""

    stored: ModelSpec  # as in the checkpoint
    held: ModelSpec  # as this rank holds it
    device: DeviceSpec
    config: Config
    model: GptOss
    fused: FusedOps | None


def assemble(vllm_config: Any) -> Assembly:
    """Chooses kernels and allocates weights; raises for settings that do not fit together."""
    config = resolve().config
    stored = read_spec(find_folder(vllm_config.model_config))
    layers = held_layers(stored.mxfp4_layers, parse_layers(config.kernels.mxfp4_layers))
    held = replace(stored, mxfp4_layers=layers)
    device = find_device(f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu")
    device.use()
    tuned = load_tuned(config.kernels.tiles_file, device)
    use_options(tuned.options)
    kernels = choose_kernels(device, config)
    fused = choose_fused(device, config, kernels.ledger, held.mxfp4_layers)
    model = GptOss(
        held,
        empty_weights(held, torch.device("meta")),
        kernels,
        device,
        max_context=vllm_config.model_config.max_model_len,
        sinks=config.kernels.sinks,
        activation=config.kernels.activation,
        tile=config.kernels.tile,
        tuned=tuned,
    )
    return Assembly(stored=stored, held=held, device=device, config=config, model=model, fused=fused)


def find_folder(model_config: Any) -> Path:
    """Returns the folder of the checkpoint, in which vLLM has put at least the configuration."""
    if Path(model_config.model).is_dir():
        return Path(model_config.model)
    return Path(hf_hub_download(model_config.model, "config.json", revision=model_config.revision)).parent


def random_weights(assembly: Assembly, seed: int) -> Weights:
    """Returns random weights, for vLLM's load format `dummy`."""
    return synthetic_weights(assembly.held, assembly.device, seed=seed)


def read_weights(assembly: Assembly, directory: Path) -> tuple[Weights, float]:
    """Reads a checkpoint folder in parallel; returns the weights and the seconds that it took."""
    start = time.perf_counter()
    weights, _ = load_weights(
        directory,
        assembly.stored,
        assembly.device,
        workers=LOAD_WORKERS,
        reserve_gib=0.0,
        held=assembly.held,
    )
    return weights, time.perf_counter() - start

"""Opens a checkpoint folder, or random weights, as an engine, by the settings; knows no text and no process."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from firesteel.config import Config, ModelConfig, parse_layers
from firesteel.device import GIB, DeviceSpec, find_device
from firesteel.engine.engine import Engine
from firesteel.engine.kv_scales import find_scales
from firesteel.engine.step_store import FusedOps
from firesteel.errors import UserError
from firesteel.kernels import Kernels, parse_pins
from firesteel.kernels.cuda_cache import use_cache
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.op import REFERENCE
from firesteel.kernels.requirement import parse_requirements
from firesteel.model.decode_ops import DecodeOps, split_choices
from firesteel.model.fill import LoadReport
from firesteel.model.gpt_oss import GptOss
from firesteel.model.precision import held_layers
from firesteel.model.reader import Progress
from firesteel.model.spec import ModelSpec, read_spec
from firesteel.model.synthetic import synthetic_weights
from firesteel.model.weights import Weights, load_weights, weight_bytes
from firesteel.types import KvScales


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    spec: ModelSpec
    device: DeviceSpec
    kernels: Kernels
    max_context: int
    model: GptOss
    engine: Engine
    fused: FusedOps | None
    report: LoadReport

    def table(self) -> list[tuple[str, str]]:
        """(op, implementations that may run, best first) for each op, those of decoding steps too."""
        return [*self.kernels.table(), *(self.fused.ops.table() if self.fused is not None else ())]


def load_engine(directory: Path, config: Config, *, progress: Progress | None = None) -> Loaded:
    stored = read_spec(directory)
    layers = held_layers(stored.mxfp4_layers, parse_layers(config.kernels.mxfp4_layers))
    spec = replace(stored, mxfp4_layers=layers)
    scales = find_scales(config.cache, spec.num_layers)
    device, max_context = find_device(config.model.device), find_max_context(spec, config)
    kernels = choose_kernels(device, config)
    weights, report = load_weights(
        directory, stored, device, workers=config.model.load_workers,
        reserve_gib=find_reserve(device, config.model), progress=progress, held=spec,
    )  # fmt: skip
    return assemble(spec, weights, kernels, device, max_context, config, report, scales)


def synthetic_engine(spec: ModelSpec, config: Config, *, seed: int) -> Loaded:
    """Of random weights made on the device, for measurements."""
    spec = replace(spec, mxfp4_layers=held_layers((), parse_layers(config.kernels.mxfp4_layers)))
    scales = find_scales(config.cache, spec.num_layers)
    device, max_context = find_device(config.model.device), find_max_context(spec, config)
    kernels, start = choose_kernels(device, config), time.perf_counter()
    weights = synthetic_weights(spec, device, seed=seed, reserve_gib=find_reserve(device, config.model))
    report = LoadReport(num_bytes=weight_bytes(spec), seconds=time.perf_counter() - start)
    return assemble(spec, weights, kernels, device, max_context, config, report, scales)


def choose_kernels(device: DeviceSpec, config: Config) -> Kernels:
    use_cache(config.kernels.kernel_cache_dir)
    pins, required = (split_choices(text)[0] for text in (config.kernels.kernels, config.kernels.require))
    return Kernels(
        device, parse_pins(pins), Ledger(), required=parse_requirements(required),
        activation=config.kernels.activation,
    )  # fmt: skip


def choose_fused(device: DeviceSpec, config: Config, ledger: Ledger) -> FusedOps | None:
    """The decode ops, where they are more than references or some are named by the settings."""
    pins = parse_pins(split_choices(config.kernels.kernels)[1])
    required = parse_requirements(split_choices(config.kernels.require)[1])
    ops = DecodeOps.choose(device, ledger, asked=pins, required=required)
    is_asked = bool(pins or required)
    if not is_asked and any(runs == REFERENCE for _, runs in ops.table()):
        return None
    return FusedOps(ops=ops, is_asked=is_asked)


def assemble(
    spec: ModelSpec, weights: Weights, kernels: Kernels, device: DeviceSpec, max_context: int, config: Config,
    report: LoadReport, scales: KvScales | None,
) -> Loaded:  # fmt: skip
    model = GptOss(
        spec, weights, kernels, device, max_context=max_context, sinks=config.kernels.sinks,
        activation=config.kernels.activation, tile=config.kernels.tile, kv_scales=scales,
    )  # fmt: skip
    fused = choose_fused(device, config, kernels.ledger)
    engine = Engine(
        model, device, config.batch, config.cache, max_context=max_context,
        reserve_gib=find_reserve(device, config.model), kernels=config.kernels, fused=fused,
    )  # fmt: skip
    return Loaded(
        spec=spec, device=device, kernels=kernels, max_context=max_context, model=model, engine=engine,
        fused=fused, report=report,
    )  # fmt: skip


def find_max_context(spec: ModelSpec, config: Config) -> int:
    asked = config.model.max_model_len or spec.max_context
    if asked > spec.max_context:
        raise UserError(f"max_model_len = {asked}: the checkpoint reaches {spec.max_context}")
    return asked


def find_reserve(device: DeviceSpec, config: ModelConfig) -> float:
    """GiB to leave free: so many, or what a share of the GPU's memory leaves."""
    if not config.gpu_memory_utilization or not device.is_cuda:
        return config.memory_reserve_gib
    return (1 - config.gpu_memory_utilization) * device.memory_bytes / GIB

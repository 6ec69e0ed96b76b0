"""Builds an engine from a checkpoint folder or from random weights, according to the settings."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from firesteel.config import Config, ModelConfig, has_own_threads, parse_layers
from firesteel.device import GIB, DeviceSpec, find_device
from firesteel.device.cores import choose_threads, count_cores
from firesteel.engine.cache.kv_scales import find_scales
from firesteel.engine.engine import Engine
from firesteel.engine.expert_scales import count_fp8_experts, examine_experts
from firesteel.engine.invariance import check_invariance
from firesteel.engine.library_needs import check_capture, check_dense_order, check_expert_order, order_experts
from firesteel.engine.preparation import prepare
from firesteel.engine.prompt_activation import check_prompt_activation, check_step_size
from firesteel.engine.step.step_store import FusedOps
from firesteel.errors import UserError
from firesteel.kernels import Kernels
from firesteel.kernels.cuda.cache import use_cache
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.op.op import REFERENCE
from firesteel.kernels.op.requirement import parse_requirements
from firesteel.kernels.registry import list_replacements, parse_pins
from firesteel.kernels.tiles.tuned import NONE, Tuned, load_tuned, use_options
from firesteel.model.decode_ops import DecodeOps, split_choices
from firesteel.model.drafters.load import load_drafter
from firesteel.model.fill import LoadReport
from firesteel.model.gpt_oss import GptOss
from firesteel.model.precision import held_layers
from firesteel.model.reader import Progress
from firesteel.model.spec import ModelSpec, read_spec
from firesteel.model.synthetic import synthetic_weights
from firesteel.model.weights import Weights, load_weights, weight_bytes
from firesteel.types import KvScales

_log = logging.getLogger(__name__)
LOAD_WORKERS = 8  # threads that read a checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """An engine with the model and the choices that it was built from."""

    spec: ModelSpec
    device: DeviceSpec
    kernels: Kernels
    max_context: int
    model: GptOss
    engine: Engine
    fused: FusedOps | None
    report: LoadReport

    def table(self) -> list[tuple[str, str]]:
        """Returns (op, implementations that may run, best first) for each op, including those of decoding steps."""
        return [*self.kernels.table(), *(self.fused.ops.table() if self.fused is not None else ())]

    def formats(self) -> dict[str, str]:
        """Returns the formats of what a step reads, as the model and the cache hold it."""
        kv = str(self.engine.runner.cache.keys[0].dtype).removeprefix("torch.")
        prompts = self.engine.runner.model
        formats = {
            "mxfp4_layers": ",".join(self.spec.mxfp4_layers),
            "activation": self.model.activation,
            "prefill_activation": prompts.activation,
            "kv": kv,
        }
        return formats | ({"experts_in_bf16": str(count_fp8_experts(prompts))} if prompts.widens_to_e4m3 else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """Choices made from the settings before any weight is read, so that a bad setting fails early."""

    spec: ModelSpec
    device: DeviceSpec
    max_context: int
    kernels: Kernels
    fused: FusedOps | None
    tuned: Tuned
    scales: KvScales | None


def load_engine(
    directory: Path, config: Config, *, progress: Progress | None = None, preparing: Progress | None = None
) -> Loaded:
    """Loads a checkpoint.

    `progress` is called with bytes read and in total, `preparing` with kernels and steps made and in total.
    """
    stored = read_spec(directory)
    layers = held_layers(stored.mxfp4_layers, parse_layers(config.kernels.mxfp4_layers))
    settled = settle(replace(stored, mxfp4_layers=layers), config)
    weights, report = load_weights(
        directory,
        stored,
        settled.device,
        workers=LOAD_WORKERS,
        reserve_gib=find_reserve(settled.device, config.model),
        progress=progress,
        held=settled.spec,
    )
    return assemble(settled, weights, config, report, preparing)


def synthetic_engine(spec: ModelSpec, config: Config, *, seed: int) -> Loaded:
    """Builds an engine with random weights made on the device, for measurements."""
    spec = replace(spec, mxfp4_layers=held_layers((), parse_layers(config.kernels.mxfp4_layers)))
    settled, start = settle(spec, config), time.perf_counter()
    reserve_gib = find_reserve(settled.device, config.model)
    weights = synthetic_weights(spec, settled.device, seed=seed, reserve_gib=reserve_gib)
    report = LoadReport(num_bytes=weight_bytes(spec), seconds=time.perf_counter() - start)
    return assemble(settled, weights, config, report)


def settle(spec: ModelSpec, config: Config) -> Settled:
    """Chooses device, context length, kernels, tiles and scales; raises if the settings do not fit together."""
    scales = find_scales(config.cache, spec.num_layers)
    device, max_context = find_device(config.model.device), find_max_context(spec, config)
    device.use()
    use_threads(device, config.model.threads, weight_bytes(spec))
    check_invariance(config.kernels)
    tuned = load_tuned(NONE if config.kernels.batch_invariant else config.kernels.tiles_file, device)
    use_options(tuned.options)
    kernels = choose_kernels(device, config)
    fused = choose_fused(device, config, kernels.ledger, spec.mxfp4_layers)
    check_expert_order(spec, kernels, is_fused=fused is not None)
    check_dense_order(kernels)
    check_capture(kernels, config.kernels, device)
    check_step_size(spec, kernels, config, device)
    return Settled(
        spec=spec,
        device=device,
        max_context=max_context,
        kernels=kernels,
        tuned=tuned,
        scales=scales,
        fused=fused,
    )


def use_threads(device: DeviceSpec, asked: int, num_bytes: int) -> None:
    """Sets the threads that torch computes with on a CPU, for weights of `num_bytes`."""
    if not device.is_cuda and (asked or not has_own_threads()):
        torch.set_num_threads(asked or choose_threads(num_bytes, count_cores()))


def choose_kernels(device: DeviceSpec, config: Config) -> Kernels:
    """Chooses the implementation of each op of the network."""
    check_prompt_activation(device, config.kernels)
    use_cache(config.kernels.kernel_cache_dir)
    pins, required = (split_choices(text)[0] for text in (config.kernels.kernels, config.kernels.require))
    return Kernels(
        device,
        parse_pins(pins),
        Ledger(),
        required=parse_requirements(required),
        activation=config.kernels.activation,
        invariant=config.kernels.batch_invariant,
    )


def choose_fused(
    device: DeviceSpec, config: Config, ledger: Ledger, mxfp4_layers: Sequence[str]
) -> FusedOps | None:
    """Chooses the decode ops; returns None if decoding steps run op by op.

    That is the case if all implementations are references and the settings name none, or if the settings name an op
    of the network without the decode op that would replace it: then the named op must run. Batch-invariant steps
    run op by op, too: a decode op adds in another order than the ops that compute prompts.
    """
    if config.kernels.batch_invariant:
        return None
    others, ours = split_choices(config.kernels.kernels)
    must, must_ours = split_choices(config.kernels.require)
    pins, required = parse_pins(ours), parse_requirements(must_ours)
    ops = DecodeOps.choose(
        device,
        ledger,
        asked=pins,
        required=required,
        activation=config.kernels.activation,
        mxfp4_layers=mxfp4_layers,
    )
    if pins or required:
        if unnamed := _unnamed(parse_requirements(must), {*required}):
            raise UserError("{} is required, but decoding steps would run {}: require that too".format(*unnamed))
        return FusedOps(ops=ops, is_asked=True)
    if any(runs == REFERENCE for _, runs in ops.table()):
        return None
    if unnamed := _unnamed([*parse_pins(others), *parse_requirements(must)], set()):
        _log.warning(
            "decoding steps run op by op: the settings name %s, but not %s, which would replace it", *unnamed
        )
        return None
    return FusedOps(ops=ops)


def _unnamed(ops: Iterable[str], named: set[str]) -> tuple[str, str] | None:
    """Returns the first of the network's `ops` that unnamed decode ops would replace, and those decode ops."""
    replacements = list_replacements()
    for op in ops:
        for others in replacements.get(op, ()):
            if named.isdisjoint(others.split("|")):
                return op, others.replace("|", " or ")
    return None


def assemble(
    settled: Settled, weights: Weights, config: Config, report: LoadReport, preparing: Progress | None = None
) -> Loaded:
    """Builds model and engine, and prepares the engine if configured."""
    spec, device, kernels, max_context = settled.spec, settled.device, settled.kernels, settled.max_context
    order_experts(weights, kernels)
    model = GptOss(
        spec,
        weights,
        kernels,
        device,
        max_context=max_context,
        sinks=config.kernels.sinks,
        activation=config.kernels.activation,
        tile=config.kernels.tile,
        tuned=settled.tuned,
        kv_scales=settled.scales,
    )
    examine_experts(model.with_activation(config.kernels.prefill_activation), device)
    drafter = None
    if config.speculate.draft_model:
        drafter = load_drafter(Path(config.speculate.draft_model), config.speculate.speculate, model, device)
    engine = Engine(
        model,
        device,
        config.batch,
        config.cache,
        max_context=max_context,
        reserve_gib=find_reserve(device, config.model),
        kernels=config.kernels,
        fused=settled.fused,
        speculate=config.speculate,
        drafter=drafter,
    )
    if config.batch.prepare:
        prepare(engine, preparing)
    return Loaded(
        spec=spec,
        device=device,
        kernels=kernels,
        max_context=max_context,
        model=model,
        engine=engine,
        fused=settled.fused,
        report=report,
    )


def find_max_context(spec: ModelSpec, config: Config) -> int:
    """Returns the configured context length, or that of the checkpoint."""
    asked = config.model.max_model_len or spec.max_context
    if asked > spec.max_context:
        raise UserError(
            f"max_model_len = {asked}: the checkpoint supports at most {spec.max_context} tokens: lower it"
        )
    return asked


def find_reserve(device: DeviceSpec, config: ModelConfig) -> float:
    """Returns the GiB to leave free: what gpu_memory_utilization leaves of a GPU, else memory_reserve_gib."""
    if not config.gpu_memory_utilization or not device.is_cuda:
        return config.memory_reserve_gib
    return (1 - config.gpu_memory_utilization) * device.memory_bytes / GIB

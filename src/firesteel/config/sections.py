"""Declares every setting of the program once: type, default, help, environment variable and check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from firesteel.config.checks import (
    at_least,
    between,
    device_name,
    layer_list,
    one_of,
    pin_list,
    power_of_two,
    requirement_list,
    tile_size,
)
from firesteel.config.declare import setting
from firesteel.config.presets import AUTO, PRESETS
from firesteel.config.server_section import ServerConfig
from firesteel.config.speculate_section import SpeculateConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    model: str = setting(
        "kindling",
        "checkpoint folder, name in the local Hugging Face cache, or kindling (built in)",
        env="FIRESTEEL_MODEL",
        is_common=True,
    )
    device: str = setting(
        "auto",
        "device to compute on: auto, cpu, cuda or cuda:N",
        env="FIRESTEEL_DEVICE",
        is_common=True,
        check=device_name,
    )
    threads: int = setting(
        0,
        "threads that compute on a CPU; 0: OMP_NUM_THREADS if set, else 1 for a small model (weights up to 256 "
        "MiB), one per physical core that this process may use for a larger one",
        env="FIRESTEEL_THREADS",
        check=at_least(0),
    )
    preset: str = setting(
        AUTO,
        f"set of defaults: {', '.join(PRESETS)}; auto: firesteel serve takes that of the GPU, other commands "
        "as-shipped",
        env="FIRESTEEL_PRESET",
        is_common=True,
        check=one_of(AUTO, *PRESETS),
    )
    max_model_len: int = setting(
        0,
        "maximum sequence length in tokens; 0: the checkpoint's own",
        env="FIRESTEEL_MAX_MODEL_LEN",
        is_common=True,
        check=at_least(0),
    )
    memory_reserve_gib: float = setting(
        1.0,
        "GiB that weights and cache must leave free; firesteel serve unless set: at most 1/8 of the host's memory, "
        "on unified memory the larger of 12 GiB and 1/10 of it",
        env="FIRESTEEL_MEMORY_RESERVE_GIB",
        check=at_least(0),
    )
    gpu_memory_utilization: float = setting(
        0.0,
        "share of the GPU's memory that may be in use, as in vLLM; replaces memory_reserve_gib; 0: not used",
        env="FIRESTEEL_GPU_MEMORY_UTILIZATION",
        is_common=True,
        check=between(0, 1),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelConfig:
    kernels: str = setting(
        "", "implementations to pin, as OP=IMPLEMENTATION,...", env="FIRESTEEL_KERNELS", check=pin_list
    )
    activation: str = setting(
        "bf16",
        "format of activations multiplied by MXFP4 weights: bf16, mxfp8 or mxfp4; mxfp6_e3m2 and mxfp6_e2m3 are "
        "emulated by reference implementations only",
        env="FIRESTEEL_ACTIVATION",
        check=one_of("bf16", "mxfp8", "mxfp4", "mxfp6_e3m2", "mxfp6_e2m3"),
    )
    prefill_activation: str = setting(
        AUTO,
        "the same for steps that compute prompts: auto (as --activation), bf16; mxfp8 or mxfp4 where the GPU "
        "multiplies them natively (SM12x); fp8 for the experts on Hopper",
        env="FIRESTEEL_PREFILL_ACTIVATION",
        check=one_of(AUTO, "bf16", "mxfp8", "mxfp4", "fp8"),
    )
    tile: str = setting(
        "auto",
        "tile of matmuls on MXFP4 weights, ROWSxCOLUMNS per CTA, such as 64x128; auto: tuned or default",
        env="FIRESTEEL_TILE",
        check=tile_size,
    )
    tiles_file: str = setting(
        "auto",
        "file of tiles made by firesteel tune on this GPU; auto: the file shipped for it; none: no file",
        env="FIRESTEEL_TILES_FILE",
    )
    require: str = setting(
        "",
        "implementations that must run, else an error: OP=IMPLEMENTATION[:VARIANT][@VERDICT],...",
        env="FIRESTEEL_REQUIRE",
        check=requirement_list,
    )
    mxfp4_layers: str = setting(
        "",
        "layers to hold in MXFP4: some of moe, qkv, o, lm_head, or all; empty: as in the checkpoint",
        env="FIRESTEEL_MXFP4_LAYERS",
        is_common=True,
        check=layer_list,
    )
    sinks: bool = setting(True, "attention sinks; switching them off breaks the model", env="FIRESTEEL_SINKS")
    batch_invariant: bool = setting(
        False,
        "the same bits for a request whatever else runs, in any order, chunks and cached prefixes: one kernel and "
        "one order of summation per op; slower",
        env="FIRESTEEL_BATCH_INVARIANT",
        is_common=True,
    )
    cuda_graphs: bool = setting(
        True,
        "replay of each decode step as one CUDA graph; off launches every kernel (also --enforce-eager)",
        env="FIRESTEEL_CUDA_GRAPHS",
        off_flag="--enforce-eager",
    )
    prefill_graphs: bool = setting(
        True,
        "replay of each step with up to 2048 prompt tokens as one CUDA graph, padded; off launches every kernel",
        env="FIRESTEEL_PREFILL_GRAPHS",
    )
    dependent_launch: bool = setting(
        True,
        "programmatic dependent launch: a decode kernel fetches its weights while the previous one ends",
        env="FIRESTEEL_DEPENDENT_LAUNCH",
    )
    kernel_cache_dir: str = setting(
        "",
        "folder for compiled CUDA kernels; empty: firesteel/kernels in the user's cache folder",
        env="FIRESTEEL_KERNEL_CACHE_DIR",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchConfig:
    page_size: int = setting(64, "tokens per KV page", env="FIRESTEEL_PAGE_SIZE", check=power_of_two)
    max_num_seqs: int = setting(
        0,
        "sequences decoded together; 0 follows the GPU's memory: 256 from 100 GiB on, 128 from 40 GiB on, else 64",
        env="FIRESTEEL_MAX_NUM_SEQS",
        is_common=True,
        check=at_least(0),
    )
    max_num_batched_tokens: int = setting(
        0,
        "maximum tokens per step; 0: 8192 on a GPU with at least 40 GiB, else 2048",
        env="FIRESTEEL_MAX_NUM_BATCHED_TOKENS",
        check=at_least(0),
    )
    max_decode_delay_ms: float = setting(
        60.0,
        "target for the longest step on a GPU in which prompts run beside decoding requests, in milliseconds; "
        "0: no limit",
        env="FIRESTEEL_MAX_DECODE_DELAY_MS",
        check=at_least(0),
    )
    prepare: bool = setting(
        False,
        "compilation and capture of everything before the first request, as serve does; off: when first needed",
        env="FIRESTEEL_PREPARE",
    )
    run_ahead: bool = setting(
        True,
        "launch of decode steps on a GPU before the tokens of the steps before them are read",
        env="FIRESTEEL_RUN_AHEAD",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    kv_cache_gib: float = setting(
        0.0,
        "GiB for keys and values; 0: all free memory above the reserve, on a CPU a modest share of it, on unified "
        "memory no more than 4 requests of full length need",
        env="FIRESTEEL_KV_CACHE_GIB",
        is_common=True,
        check=at_least(0),
    )
    kv_dtype: str = setting(
        "auto",
        "format of stored keys and values: bf16, fp8 (E4M3) or auto (as computed)",
        env="FIRESTEEL_KV_DTYPE",
        is_common=True,
        check=one_of("auto", "bf16", "fp8"),
    )
    kv_scales: str = setting(
        "",
        "file of scales for fp8 keys and values, written by firesteel calibrate; empty: all scales are 1",
        env="FIRESTEEL_KV_SCALES",
    )
    prefix_caching: bool = setting(
        True,
        "reuse of keys and values of earlier requests for prompts with the same beginning",
        env="FIRESTEEL_PREFIX_CACHING",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessConfig:
    engine_restarts: int = setting(
        3,
        "restarts of a crashed engine within 10 minutes; after that the server exits with code 1",
        env="FIRESTEEL_ENGINE_RESTARTS",
        check=at_least(0),
    )
    engine_hang_s: float = setting(
        120.0,
        "seconds without a message after which the engine is killed (an idle one is asked for messages); five "
        "times as long while it loads (load progress and compiled kernels are messages); 0: never",
        env="FIRESTEEL_ENGINE_HANG_S",
        check=at_least(0),
    )
    crash_dir: str = setting("firesteel-crashes", "folder for crash bundles", env="FIRESTEEL_CRASH_DIR")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    model: ModelConfig = ModelConfig()
    kernels: KernelConfig = KernelConfig()
    batch: BatchConfig = BatchConfig()
    cache: CacheConfig = CacheConfig()
    speculate: SpeculateConfig = field(default_factory=SpeculateConfig)
    process: ProcessConfig = ProcessConfig()
    server: ServerConfig = field(default_factory=ServerConfig)

    def with_draft_model(
        self, find: Callable[[str, str, Path], str], directory: Path, origins: Mapping[str, str] | None = None
    ) -> Config:
        """Returns the settings with the draft model's folder, which `find` returns, in place of its name.

        `directory` is the folder of the model. Raises for settings of drafts without drafts; `origins` as in
        `SpeculateConfig.check`.
        """
        asked = self.speculate
        asked.check(origins)
        folder = find(asked.speculate, asked.draft_model, directory)
        return replace(self, speculate=replace(asked, draft_model=folder))

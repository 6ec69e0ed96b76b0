"""Declares every setting of the program once: type, default, help, environment variable and check."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from firesteel.config.checks import (
    Check,
    at_least,
    between,
    date_word,
    device_name,
    host_list,
    layer_list,
    one_of,
    origin_list,
    pin_list,
    power_of_two,
    requirement_list,
    tile_size,
)
from firesteel.config.keys import key_list
from firesteel.config.presets import AUTO, PRESETS


def setting(
    default: Any, help: str, *, env: str, check: Check | None = None, off_flag: str = "", repeats: bool = False
) -> Any:
    """Declares a setting. `off_flag` names a second flag that switches it off.

    The flag of a setting that `repeats` may be given several times; its value has one line per flag.
    """
    return field(
        default=default,
        metadata={"help": help, "env": env, "check": check, "off_flag": off_flag, "repeats": repeats},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    model: str = setting(
        "kindling",
        "checkpoint folder, name in the local Hugging Face cache, or kindling (built in)",
        env="FIRESTEEL_MODEL",
    )
    device: str = setting(
        "auto", "device to compute on: auto, cpu, cuda or cuda:N", env="FIRESTEEL_DEVICE", check=device_name
    )
    preset: str = setting(
        AUTO,
        f"set of defaults: {', '.join(PRESETS)}; auto: firesteel serve takes that of the GPU, other commands "
        "as-shipped",
        env="FIRESTEEL_PRESET",
        check=one_of(AUTO, *PRESETS),
    )
    max_model_len: int = setting(
        0,
        "maximum sequence length in tokens; 0: the checkpoint's own",
        env="FIRESTEEL_MAX_MODEL_LEN",
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
        "the same for steps that compute prompts: auto (as --activation), bf16, or mxfp8 or mxfp4 where the GPU "
        "multiplies them natively (SM12x)",
        env="FIRESTEEL_PREFILL_ACTIVATION",
        check=one_of(AUTO, "bf16", "mxfp8", "mxfp4"),
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
        check=layer_list,
    )
    sinks: bool = setting(True, "attention sinks; switching them off breaks the model", env="FIRESTEEL_SINKS")
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
        check=at_least(0),
    )
    max_num_batched_tokens: int = setting(
        0,
        "maximum tokens per step; 0: 8192 on a GPU with at least 40 GiB, else 2048",
        env="FIRESTEEL_MAX_NUM_BATCHED_TOKENS",
        check=at_least(0),
    )
    max_decode_delay_ms: float = setting(
        40.0,
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
        check=at_least(0),
    )
    kv_dtype: str = setting(
        "auto",
        "format of stored keys and values: bf16, fp8 (E4M3) or auto (as computed)",
        env="FIRESTEEL_KV_DTYPE",
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
class ServerConfig:
    host: str = setting("127.0.0.1", "address to listen on; 0.0.0.0: all addresses", env="FIRESTEEL_HOST")
    port: int = setting(8000, "port to listen on; 0: any free port", env="FIRESTEEL_PORT", check=between(0, 65535))
    api_key: str = setting(
        "",
        "key that clients must send, one of several if repeated (one per line elsewhere); empty: no key",
        env="FIRESTEEL_API_KEY",
        check=key_list,
        repeats=True,
    )
    api_key_file: str = setting(
        "", "file of further keys, one per line; empty: no file", env="FIRESTEEL_API_KEY_FILE"
    )
    share_prefixes: bool = setting(
        False,
        "cached prefixes for clients of all keys; off: each key has its own",
        env="FIRESTEEL_SHARE_PREFIXES",
    )
    allowed_hosts: str = setting(
        "",
        "host names that requests may use, joined by commas; *: all; empty: loopback only while the server listens "
        "on loopback, otherwise all",
        env="FIRESTEEL_ALLOWED_HOSTS",
        check=host_list,
    )
    allowed_origins: str = setting(
        "",
        "CORS: origins of web pages that may use the server, joined by commas; *: all, empty: none",
        env="FIRESTEEL_ALLOWED_ORIGINS",
        check=origin_list,
    )
    served_model_name: str = setting(
        "",
        "names that clients may use for the model, joined by commas; empty: the value of --model",
        env="FIRESTEEL_SERVED_MODEL_NAME",
    )
    max_waiting: int = setting(
        256,
        "requests that may wait beyond the running ones; further requests get 429",
        env="FIRESTEEL_MAX_WAITING",
        check=at_least(0),
    )
    max_body_mib: float = setting(
        16.0,
        "maximum size of a request body in MiB; a larger one gets 413",
        env="FIRESTEEL_MAX_BODY_MIB",
        check=at_least(0),
    )
    request_timeout_s: float = setting(
        3600.0,
        "maximum seconds per request, waiting included; 0: no limit",
        env="FIRESTEEL_REQUEST_TIMEOUT_S",
        check=at_least(0),
    )
    slow_client_s: float = setting(
        60.0,
        "seconds after which a client that does not read its stream is disconnected; 0: never",
        env="FIRESTEEL_SLOW_CLIENT_S",
        check=at_least(0),
    )
    drain_s: float = setting(
        30.0,
        "seconds that running requests get to finish when the server stops; then they end with an error",
        env="FIRESTEEL_DRAIN_S",
        check=at_least(0),
    )
    schema_timeout_s: float = setting(
        2.0,
        "maximum seconds to compile the JSON schemas of a request; 0: no limit",
        env="FIRESTEEL_SCHEMA_TIMEOUT_S",
        check=at_least(0),
    )
    schema_memory_mib: float = setting(
        512.0,
        "maximum MiB of memory to compile the JSON schemas of a request",
        env="FIRESTEEL_SCHEMA_MEMORY_MIB",
        check=at_least(64),
    )
    prompt_date: str = setting(
        "none",
        "date in the system message: none, today (changes at midnight UTC, which invalidates cached prefixes) or "
        "YYYY-MM-DD",
        env="FIRESTEEL_PROMPT_DATE",
        check=date_word,
    )
    response_store_mib: float = setting(
        64.0,
        "MiB of responses kept for previous_response_id, oldest dropped first; 0: keep none",
        env="FIRESTEEL_RESPONSE_STORE_MIB",
        check=at_least(0),
    )
    log_format: str = setting(
        "text", "format of log lines: text or json", env="FIRESTEEL_LOG_FORMAT", check=one_of("text", "json")
    )
    log_prompts: bool = setting(False, "prompts and answers in the log", env="FIRESTEEL_LOG_PROMPTS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    model: ModelConfig = ModelConfig()
    kernels: KernelConfig = KernelConfig()
    batch: BatchConfig = BatchConfig()
    cache: CacheConfig = CacheConfig()
    process: ProcessConfig = ProcessConfig()
    server: ServerConfig = ServerConfig()

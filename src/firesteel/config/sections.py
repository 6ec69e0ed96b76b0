"""Every knob of the program, once: type, default, help, environment name and check; knows no reader of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from firesteel.config.checks import (
    Check,
    at_least,
    between,
    date_word,
    device_name,
    layer_list,
    one_of,
    origin_list,
    pin_list,
    power_of_two,
    requirement_list,
    tile_size,
)


def knob(default: Any, help: str, *, env: str, check: Check | None = None, off_flag: str = "") -> Any:
    """`off_flag` is a second flag that switches it off."""
    return field(default=default, metadata={"help": help, "env": env, "check": check, "off_flag": off_flag})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    model: str = knob(
        "kindling",
        "checkpoint folder, a name in the local Hugging Face cache, or kindling, which is built in",
        env="FIRESTEEL_MODEL",
    )
    device: str = knob(
        "auto", "where to compute: auto, cpu, cuda or cuda:N", env="FIRESTEEL_DEVICE", check=device_name
    )
    max_model_len: int = knob(
        0,
        "longest sequence in tokens; 0 is the checkpoint's own",
        env="FIRESTEEL_MAX_MODEL_LEN",
        check=at_least(0),
    )
    load_workers: int = knob(8, "threads that read the checkpoint", env="FIRESTEEL_LOAD_WORKERS", check=at_least(1))
    memory_reserve_gib: float = knob(
        1.0, "GiB that weights and cache must leave free", env="FIRESTEEL_MEMORY_RESERVE_GIB", check=at_least(0)
    )
    gpu_memory_utilization: float = knob(
        0.0,
        "share of a GPU's memory that may be in use, as vLLM counts it; 0 leaves memory_reserve_gib free",
        env="FIRESTEEL_GPU_MEMORY_UTILIZATION",
        check=between(0, 1),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelConfig:
    kernels: str = knob(
        "", "implementations to insist on, as OP=IMPLEMENTATION,...", env="FIRESTEEL_KERNELS", check=pin_list
    )
    activation: str = knob(
        "bf16",
        "what activations are rounded to before MXFP4 weights: bf16, mxfp8 or mxfp4",
        env="FIRESTEEL_ACTIVATION",
        check=one_of("bf16", "mxfp8", "mxfp4"),
    )
    tile: str = knob(
        "auto",
        "rows x columns that a program of a matmul on MXFP4 weights computes, as 64x128; auto chooses",
        env="FIRESTEEL_TILE",
        check=tile_size,
    )
    tiles_file: str = knob(
        "auto",
        "file of tiles, made by firesteel tune on this GPU; auto: the one that ships for it; none: no file",
        env="FIRESTEEL_TILES_FILE",
    )
    require: str = knob(
        "",
        "what must run, or fail: OP=IMPLEMENTATION[:VARIANT][@VERDICT],...",
        env="FIRESTEEL_REQUIRE",
        check=requirement_list,
    )
    mxfp4_layers: str = knob(
        "",
        "layers to hold in MXFP4, of moe, qkv, o, lm_head, or all; empty is as in the checkpoint",
        env="FIRESTEEL_MXFP4_LAYERS",
        check=layer_list,
    )
    sinks: bool = knob(True, "attention sinks; off is an experiment that breaks the model", env="FIRESTEEL_SINKS")
    cuda_graphs: bool = knob(
        True,
        "replay a decoding step as one CUDA graph; off launches each kernel (also --enforce-eager)",
        env="FIRESTEEL_CUDA_GRAPHS",
        off_flag="--enforce-eager",
    )
    dependent_launch: bool = knob(
        True,
        "let each kernel of a decoding step fetch its weights while the one before it ends",
        env="FIRESTEEL_DEPENDENT_LAUNCH",
    )
    kernel_cache_dir: str = knob(
        "",
        "folder for compiled CUDA kernels; empty is firesteel/kernels in the user's cache folder",
        env="FIRESTEEL_KERNEL_CACHE_DIR",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchConfig:
    page_size: int = knob(64, "tokens per KV page", env="FIRESTEEL_PAGE_SIZE", check=power_of_two)
    max_num_seqs: int = knob(64, "sequences decoded together", env="FIRESTEEL_MAX_NUM_SEQS", check=at_least(1))
    max_num_batched_tokens: int = knob(
        0,
        "tokens computed in one step; 0 is 8192 on a GPU with room for what they need (40 GiB), else 2048",
        env="FIRESTEEL_MAX_NUM_BATCHED_TOKENS",
        check=at_least(0),
    )
    capture_at_start: int = knob(
        0, "make and capture decoding steps of 1 to so many requests before the first one; 0: when first needed",
        env="FIRESTEEL_CAPTURE_AT_START", check=at_least(0),
    )  # fmt: skip
    run_ahead: bool = knob(
        True,
        "launch decoding steps on a GPU before the tokens of those ahead of them are read",
        env="FIRESTEEL_RUN_AHEAD",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    kv_cache_gib: float = knob(
        0.0,
        "GiB for keys and values; 0 takes what is free once the reserve is left, on a CPU a modest share",
        env="FIRESTEEL_KV_CACHE_GIB",
        check=at_least(0),
    )
    kv_dtype: str = knob(
        "auto",
        "what keys and values are stored in: bf16, fp8 (E4M3) or auto, as they are computed",
        env="FIRESTEEL_KV_DTYPE",
        check=one_of("auto", "bf16", "fp8"),
    )
    kv_scales: str = knob(
        "",
        "file of scales for fp8 keys and values, as firesteel calibrate writes it; without one all are 1",
        env="FIRESTEEL_KV_SCALES",
    )
    prefix_caching: bool = knob(
        True,
        "keep keys and values of finished requests for prompts that begin alike",
        env="FIRESTEEL_PREFIX_CACHING",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessConfig:
    engine_restarts: int = knob(
        3,
        "times that an engine which died is started again within the window; then requests fail",
        env="FIRESTEEL_ENGINE_RESTARTS",
        check=at_least(0),
    )
    engine_restart_window_s: float = knob(
        600.0,
        "seconds over which restarts of the engine are counted",
        env="FIRESTEEL_ENGINE_RESTART_WINDOW_S",
        check=at_least(0),
    )
    engine_hang_s: float = knob(
        120.0,
        "seconds without a word from the engine, while requests wait, after which it is ended; while it "
        "loads (progress and compiled kernels are words), five times as many; 0 is never",
        env="FIRESTEEL_ENGINE_HANG_S",
        check=at_least(0),
    )
    crash_dir: str = knob("firesteel-crashes", "folder for crash bundles", env="FIRESTEEL_CRASH_DIR")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    host: str = knob("127.0.0.1", "address to listen on; 0.0.0.0 is every one", env="FIRESTEEL_HOST")
    port: int = knob(8000, "port to listen on; 0 takes a free one", env="FIRESTEEL_PORT", check=between(0, 65535))
    api_key: str = knob("", "key that clients must send; empty asks for none", env="FIRESTEEL_API_KEY")
    allowed_origins: str = knob(
        "",
        "origins of web pages whose scripts may use the server, joined by commas; * is every one, empty none",
        env="FIRESTEEL_ALLOWED_ORIGINS",
        check=origin_list,
    )
    served_model_name: str = knob(
        "",
        "names that clients may use for the model, joined by commas; empty is the model as it was given",
        env="FIRESTEEL_SERVED_MODEL_NAME",
    )
    max_waiting: int = knob(
        256,
        "requests that may wait beyond those that run; more are answered 429",
        env="FIRESTEEL_MAX_WAITING",
        check=at_least(0),
    )
    max_connections: int = knob(
        4096, "open connections; more are answered 503", env="FIRESTEEL_MAX_CONNECTIONS", check=at_least(1)
    )
    max_body_mib: float = knob(
        16.0, "MiB of a request's body; more is answered 413", env="FIRESTEEL_MAX_BODY_MIB", check=at_least(0)
    )
    body_timeout_s: float = knob(
        30.0, "seconds for a request's body to arrive", env="FIRESTEEL_BODY_TIMEOUT_S", check=at_least(0)
    )
    request_timeout_s: float = knob(
        3600.0,
        "seconds that a request may take, waiting included; 0 is any time",
        env="FIRESTEEL_REQUEST_TIMEOUT_S",
        check=at_least(0),
    )
    slow_client_s: float = knob(
        60.0,
        "seconds after which a client that does not read its stream is dropped; 0 is never",
        env="FIRESTEEL_SLOW_CLIENT_S",
        check=at_least(0),
    )
    drain_s: float = knob(
        30.0,
        "seconds that requests under way get when the server is told to stop",
        env="FIRESTEEL_DRAIN_S",
        check=at_least(0),
    )
    prompt_date: str = knob(
        "none",
        "date in the system message: none, today (its change at midnight UTC misses the prefix cache) or "
        "YYYY-MM-DD",
        env="FIRESTEEL_PROMPT_DATE",
        check=date_word,
    )
    response_store_mib: float = knob(
        64.0,
        "MiB of responses kept for previous_response_id, the oldest go first; 0 keeps none",
        env="FIRESTEEL_RESPONSE_STORE_MIB",
        check=at_least(0),
    )
    log_format: str = knob(
        "text", "lines of the log: text or json", env="FIRESTEEL_LOG_FORMAT", check=one_of("text", "json")
    )
    log_prompts: bool = knob(False, "write prompts and answers to the log", env="FIRESTEEL_LOG_PROMPTS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    model: ModelConfig = ModelConfig()
    kernels: KernelConfig = KernelConfig()
    batch: BatchConfig = BatchConfig()
    cache: CacheConfig = CacheConfig()
    process: ProcessConfig = ProcessConfig()
    server: ServerConfig = ServerConfig()

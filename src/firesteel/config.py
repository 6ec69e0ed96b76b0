"""Every knob of the program, once: type, default, help, environment name and check; knows no reader of it."""

from __future__ import annotations

import dataclasses
import datetime
import difflib
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from firesteel.errors import UserError

PREFIX = "FIRESTEEL_"
FILE_VARIABLE = "FIRESTEEL_CONFIG"
HIDDEN = "(hidden)"  # stands for a secret wherever settings are shown or kept
# Of the environment, what changes how an engine runs.
ENGINE_VARIABLES = (
    r"(FIRESTEEL|CUDA|NVIDIA|NCCL|VLLM|SGL|SGLANG|TORCH|PYTORCH|TRITON|FLASHINFER|GGML|LLAMA|OMP|MKL|ONEDNN|HF)_"
    r"|PYTHON|PATH$|LD_LIBRARY_PATH$|LD_PRELOAD$|VIRTUAL_ENV$|LANG$"
)
LAYERS = ("moe", "qkv", "o", "lm_head")  # that MXFP4 may hold
Check = Callable[[Any], str | None]


class ConfigError(UserError):
    """A knob that does not exist, or a value it cannot take."""


def knob(default: Any, help: str, *, env: str, check: Check | None = None, off_flag: str = "") -> Any:
    """`off_flag` is a second flag that switches it off."""
    return field(default=default, metadata={"help": help, "env": env, "check": check, "off_flag": off_flag})


def at_least(least: float) -> Check:
    return lambda value: None if value >= least else f"must be at least {least}"


def between(least: float, most: float) -> Check:
    return lambda value: None if least <= value <= most else f"must be from {least} to {most}"


def power_of_two(value: int) -> str | None:
    return None if value > 0 and value & (value - 1) == 0 else "must be a power of two"


def one_of(*choices: str) -> Check:
    return lambda value: None if value in choices else f"must be one of {', '.join(choices)}"


def device_name(value: str) -> str | None:
    return None if re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", value) else "must be auto, cpu, cuda or cuda:N"


def date_word(value: str) -> str | None:
    if value in ("none", "today"):
        return None
    try:
        datetime.date.fromisoformat(value)
    except ValueError:
        return "must be none, today or a date like 2026-01-31"
    return None


def pin_list(value: str) -> str | None:
    bad = [pin for pin in value.split(",") if pin and pin.count("=") != 1]
    return f"wants OP=IMPLEMENTATION pairs joined by commas, not {bad[0]!r}" if bad else None


def requirement_list(value: str) -> str | None:
    parts = [part.strip() for part in value.split(",") if part.strip()]
    bad = [part for part in parts if not re.fullmatch(r"\w+=[\w:. -]+(@[\w-]+)?", part)]
    return f"wants OP=IMPLEMENTATION[:VARIANT][@VERDICT] joined by commas, not {bad[0]!r}" if bad else None


def tile_size(value: str) -> str | None:
    found = re.fullmatch(r"([0-9]+)x([0-9]+)", value)
    if value == "auto" or (
        found and all(int(size) >= 16 and not power_of_two(int(size)) for size in found.groups())
    ):
        return None
    return "must be auto or ROWSxCOLUMNS, both powers of two from 16 on, as 64x128"


def layer_list(value: str) -> str | None:
    bad = [name for name in parse_layers(value) if name not in LAYERS]
    return f"wants some of {', '.join(LAYERS)}, or all, joined by commas, not {bad[0]!r}" if bad else None


def parse_layers(value: str) -> tuple[str, ...]:
    """The layers that "moe,qkv" or "all" names, in our order; what is unknown comes last."""
    given = [name.strip() for name in value.split(",") if name.strip()]
    if given == ["all"]:
        return LAYERS
    return (*(name for name in LAYERS if name in given), *(name for name in given if name not in LAYERS))


def parse_origins(value: str) -> tuple[str, ...]:
    """Of web pages: joined by commas, or a list in JSON as vLLM takes it."""
    return tuple(part for part in re.split(r"[\s,\[\]\"']+", value) if part)


def origin_list(value: str) -> str | None:
    bad = [one for one in parse_origins(value) if one != "*" and not re.fullmatch(r"https?://[^/?#@]+", one)]
    return f"wants origins like http://localhost:3000 joined by commas, or *, not {bad[0]!r}" if bad else None


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
        0, "longest sequence in tokens; 0 is the checkpoint's own", env="FIRESTEEL_MAX_MODEL_LEN",
        check=at_least(0),
    )  # fmt: skip
    load_workers: int = knob(8, "threads that read the checkpoint", env="FIRESTEEL_LOAD_WORKERS", check=at_least(1))
    memory_reserve_gib: float = knob(
        1.0, "GiB that weights and cache must leave free", env="FIRESTEEL_MEMORY_RESERVE_GIB", check=at_least(0)
    )
    gpu_memory_utilization: float = knob(
        0.0, "share of a GPU's memory that may be in use, as vLLM counts it; 0 leaves memory_reserve_gib free",
        env="FIRESTEEL_GPU_MEMORY_UTILIZATION", check=between(0, 1),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelConfig:
    kernels: str = knob(
        "", "implementations to insist on, as OP=IMPLEMENTATION,...", env="FIRESTEEL_KERNELS", check=pin_list
    )
    activation: str = knob(
        "bf16", "what activations are rounded to before MXFP4 weights: bf16, mxfp8 or mxfp4",
        env="FIRESTEEL_ACTIVATION", check=one_of("bf16", "mxfp8", "mxfp4"),
    )  # fmt: skip
    tile: str = knob(
        "auto", "rows x columns that a program of a matmul on MXFP4 weights computes, as 64x128; auto chooses",
        env="FIRESTEEL_TILE", check=tile_size,
    )  # fmt: skip
    tiles_file: str = knob(
        "", "file of tiles that firesteel tune measured on this GPU; empty is the tiles that are shipped",
        env="FIRESTEEL_TILES_FILE",
    )  # fmt: skip
    require: str = knob(
        "", "what must run, or fail: OP=IMPLEMENTATION[:VARIANT][@VERDICT],...", env="FIRESTEEL_REQUIRE",
        check=requirement_list,
    )  # fmt: skip
    mxfp4_layers: str = knob(
        "", "layers to hold in MXFP4, of moe, qkv, o, lm_head, or all; empty is as in the checkpoint",
        env="FIRESTEEL_MXFP4_LAYERS", check=layer_list,
    )  # fmt: skip
    sinks: bool = knob(True, "attention sinks; off is an experiment that breaks the model", env="FIRESTEEL_SINKS")
    cuda_graphs: bool = knob(
        True, "replay a decoding step as one CUDA graph; off launches each kernel (also --enforce-eager)",
        env="FIRESTEEL_CUDA_GRAPHS", off_flag="--enforce-eager",
    )  # fmt: skip
    dependent_launch: bool = knob(
        True, "let each kernel of a decoding step fetch its weights while the one before it ends",
        env="FIRESTEEL_DEPENDENT_LAUNCH",
    )  # fmt: skip
    kernel_cache_dir: str = knob(
        "", "folder for compiled CUDA kernels; empty is firesteel/kernels in the user's cache folder",
        env="FIRESTEEL_KERNEL_CACHE_DIR",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchConfig:
    page_size: int = knob(64, "tokens per KV page", env="FIRESTEEL_PAGE_SIZE", check=power_of_two)
    max_num_seqs: int = knob(64, "sequences decoded together", env="FIRESTEEL_MAX_NUM_SEQS", check=at_least(1))
    max_num_batched_tokens: int = knob(
        0, "tokens computed in one step; 0 is 8192 on a GPU with room for what they need (40 GiB), else 2048",
        env="FIRESTEEL_MAX_NUM_BATCHED_TOKENS", check=at_least(0),
    )  # fmt: skip
    capture_at_start: int = knob(
        0, "make and capture decoding steps of 1 to so many requests before the first one; 0: when first needed",
        env="FIRESTEEL_CAPTURE_AT_START", check=at_least(0),
    )  # fmt: skip
    run_ahead: bool = knob(
        True, "launch decoding steps on a GPU before the tokens of those ahead of them are read",
        env="FIRESTEEL_RUN_AHEAD",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    kv_cache_gib: float = knob(
        0.0, "GiB for keys and values; 0 takes what is free once the reserve is left, on a CPU a modest share",
        env="FIRESTEEL_KV_CACHE_GIB", check=at_least(0),
    )  # fmt: skip
    kv_dtype: str = knob(
        "auto", "what keys and values are stored in: bf16, fp8 (E4M3) or auto, as they are computed",
        env="FIRESTEEL_KV_DTYPE", check=one_of("auto", "bf16", "fp8"),
    )  # fmt: skip
    kv_scales: str = knob(
        "", "file of scales for fp8 keys and values, as firesteel calibrate writes it; without one all are 1",
        env="FIRESTEEL_KV_SCALES",
    )  # fmt: skip
    prefix_caching: bool = knob(
        True, "keep keys and values of finished requests for prompts that begin alike",
        env="FIRESTEEL_PREFIX_CACHING",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessConfig:
    engine_restarts: int = knob(
        3, "times that an engine which died is started again within the window; then requests fail",
        env="FIRESTEEL_ENGINE_RESTARTS", check=at_least(0),
    )  # fmt: skip
    engine_restart_window_s: float = knob(
        600.0, "seconds over which restarts of the engine are counted", env="FIRESTEEL_ENGINE_RESTART_WINDOW_S",
        check=at_least(0),
    )  # fmt: skip
    engine_hang_s: float = knob(
        120.0, "seconds without a word from the engine, while requests wait, after which it is ended; while it "
        "loads (progress and compiled kernels are words), five times as many; 0 is never",
        env="FIRESTEEL_ENGINE_HANG_S", check=at_least(0),
    )  # fmt: skip
    crash_dir: str = knob("firesteel-crashes", "folder for crash bundles", env="FIRESTEEL_CRASH_DIR")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    host: str = knob("127.0.0.1", "address to listen on; 0.0.0.0 is every one", env="FIRESTEEL_HOST")
    port: int = knob(8000, "port to listen on; 0 takes a free one", env="FIRESTEEL_PORT", check=between(0, 65535))
    api_key: str = knob("", "key that clients must send; empty asks for none", env="FIRESTEEL_API_KEY")
    allowed_origins: str = knob(
        "", "origins of web pages whose scripts may use the server, joined by commas; * is every one, empty none",
        env="FIRESTEEL_ALLOWED_ORIGINS", check=origin_list,
    )  # fmt: skip
    served_model_name: str = knob(
        "", "names that clients may use for the model, joined by commas; empty is the model as it was given",
        env="FIRESTEEL_SERVED_MODEL_NAME",
    )  # fmt: skip
    max_waiting: int = knob(
        256, "requests that may wait beyond those that run; more are answered 429", env="FIRESTEEL_MAX_WAITING",
        check=at_least(0),
    )  # fmt: skip
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
        3600.0, "seconds that a request may take, waiting included; 0 is any time",
        env="FIRESTEEL_REQUEST_TIMEOUT_S", check=at_least(0),
    )  # fmt: skip
    slow_client_s: float = knob(
        60.0, "seconds after which a client that does not read its stream is dropped; 0 is never",
        env="FIRESTEEL_SLOW_CLIENT_S", check=at_least(0),
    )  # fmt: skip
    drain_s: float = knob(
        30.0, "seconds that requests under way get when the server is told to stop", env="FIRESTEEL_DRAIN_S",
        check=at_least(0),
    )  # fmt: skip
    prompt_date: str = knob(
        "none", "date in the system message: none, today (its change at midnight UTC misses the prefix cache) or "
        "YYYY-MM-DD", env="FIRESTEEL_PROMPT_DATE", check=date_word,
    )  # fmt: skip
    response_store_mib: float = knob(
        64.0, "MiB of responses kept for previous_response_id, the oldest go first; 0 keeps none",
        env="FIRESTEEL_RESPONSE_STORE_MIB", check=at_least(0),
    )  # fmt: skip
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


@dataclass(frozen=True, slots=True)
class Knob:
    """One declared field: `section.name` in Config, `name` in files, `--name` as a flag."""

    section: str
    name: str
    type: type
    default: Any
    help: str
    env: str
    check: Check | None
    off_flag: str


@dataclass(frozen=True, slots=True)
class Settings:
    """A resolved Config and, for each knob, which of flag, environment, file or default set it."""

    config: Config
    origins: Mapping[str, str]


def knobs() -> dict[str, Knob]:
    found: dict[str, Knob] = {}
    for section, section_type in get_type_hints(Config).items():
        hints = get_type_hints(section_type)
        for declared in dataclasses.fields(section_type):
            meta = declared.metadata
            found[declared.name] = Knob(
                section, declared.name, hints[declared.name], declared.default, meta["help"], meta["env"],
                meta["check"], meta["off_flag"],
            )  # fmt: skip
    return found


def resolve(
    flags: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    file: str | Path | None = None,
) -> Settings:
    """Settings by precedence flag > environment > file > default; a flag of None was not given."""
    environ = os.environ if environ is None else environ
    known = knobs()
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    reject_unknown(given, known, "setting")
    variables = {knob.env: knob.name for knob in known.values()}
    reject_unknown([name for name in environ if name.startswith(PREFIX)], [*variables, FILE_VARIABLE], "variable")
    file = file or environ.get(FILE_VARIABLE)
    from_file = read_file(Path(file), known) if file else {}

    values: dict[str, dict[str, Any]] = {}
    origins = {}
    for name, declared in known.items():
        if name in given:
            value, origin = given[name], "flag"
        elif declared.env in environ:
            value, origin = parse(environ[declared.env], declared), f"environment {declared.env}"
        elif name in from_file:
            value, origin = from_file[name], f"file {file}"
        else:
            value, origin = declared.default, "default"
        values.setdefault(declared.section, {})[name] = checked(value, declared, origin)
        origins[name] = origin
    sections = {section: kind(**values[section]) for section, kind in get_type_hints(Config).items()}
    return Settings(Config(**sections), origins)


def read_file(path: Path, known: Mapping[str, Knob]) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    reject_unknown(content, known, f"key in {path}:")
    return content


def reject_unknown(names: Mapping[str, Any] | list[str], known: Mapping[str, Any] | list[str], what: str) -> None:
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, list(known), n=1, cutoff=0)
            raise ConfigError(f"unknown {what} {name}; did you mean {near[0]}?")


def parse(text: str, declared: Knob) -> Any:
    if declared.type is bool:
        truth = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)
        if text.lower() not in truth:
            raise ConfigError(f"{declared.env}={text!r}: wants on or off")
        return truth[text.lower()]
    try:
        return declared.type(text)
    except ValueError as error:
        raise ConfigError(f"{declared.env}={text!r}: wants {declared.type.__name__}") from error


def checked(value: Any, declared: Knob, origin: str) -> Any:
    if declared.type is float and type(value) is int:
        value = float(value)
    if type(value) is not declared.type:
        raise ConfigError(f"{declared.name} = {value!r} ({origin}): wants {declared.type.__name__}")
    if declared.check and (complaint := declared.check(value)):
        raise ConfigError(f"{declared.name} = {value!r} ({origin}): {complaint}")
    return value


def find_user_cache(environ: Mapping[str, str] | None = None) -> Path | None:
    """The user's folder for caches, as the XDG base directories say; None where there is no home folder."""
    environ = os.environ if environ is None else environ
    caches = Path(environ.get("XDG_CACHE_HOME", ""))
    if caches.is_absolute():
        return caches
    home = environ.get("HOME") or os.path.expanduser("~")
    return Path(home) / ".cache" if os.path.isabs(home) else None


def shown_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """What may be written down of the environment: our own variables and the choice of GPUs, secrets hidden."""
    environ = os.environ if environ is None else environ
    names = sorted(name for name in environ if name.startswith(PREFIX) or name == "CUDA_VISIBLE_DEVICES")
    return {name: HIDDEN if is_secret(name) else environ[name] for name in names}


def child_environment(extra: Mapping[str, str], *, without: tuple[str, ...] = ()) -> dict[str, str]:
    """For a program that is started: this one's environment with some variables more and some less."""
    return {name: value for name, value in os.environ.items() if name not in without} | dict(extra)


def told_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """What says how engines run, ours or others', for a crash bundle; names that may hold secrets are left out."""
    environ = os.environ if environ is None else environ
    names = sorted(name for name in environ if re.match(ENGINE_VARIABLES, name))
    return {name: environ[name] for name in names if not re.search(r"key|secret|passw|token|auth", name, re.I)}


def shown_value(name: str, value: Any) -> Any:
    """A knob's value as it may be shown."""
    return HIDDEN if is_secret(name) and value else value


def is_secret(name: str) -> bool:
    """Of a flag, variable or field."""
    return re.search(r"(key|secret|password|auth[_-]token)s?$", name, re.IGNORECASE) is not None

"""Settings of the server: where it listens, whom it answers, and its limits."""

from __future__ import annotations

from dataclasses import dataclass

from firesteel.config.checks import at_least, between, date_word, host_list, one_of, origin_list
from firesteel.config.declare import setting
from firesteel.config.keys import key_list


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    host: str = setting(
        "127.0.0.1", "address to listen on; 0.0.0.0: all addresses", env="FIRESTEEL_HOST", is_common=True
    )
    port: int = setting(
        8000, "port to listen on; 0: any free port", env="FIRESTEEL_PORT", is_common=True, check=between(0, 65535)
    )
    api_key: str = setting(
        "",
        "key that clients must send, one of several if repeated (one per line elsewhere); empty: no key",
        env="FIRESTEEL_API_KEY",
        is_common=True,
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
        is_common=True,
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

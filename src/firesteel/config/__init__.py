"""The user's choices: every knob, how it is set, and what is read of the environment; knows no reader of them."""

from firesteel.config.checks import LAYERS, parse_layers, parse_origins
from firesteel.config.environment import (
    HIDDEN,
    child_environment,
    find_reference_key,
    find_user_cache,
    hide_secrets,
    is_secret,
    shown_environment,
    shown_value,
    told_environment,
)
from firesteel.config.sections import (
    BatchConfig,
    CacheConfig,
    Config,
    KernelConfig,
    ModelConfig,
    ProcessConfig,
    ServerConfig,
)
from firesteel.config.settings import ConfigError, Knob, Settings, knobs, resolve

__all__ = [
    "HIDDEN",
    "LAYERS",
    "BatchConfig",
    "CacheConfig",
    "Config",
    "ConfigError",
    "KernelConfig",
    "Knob",
    "ModelConfig",
    "ProcessConfig",
    "ServerConfig",
    "Settings",
    "child_environment",
    "find_reference_key",
    "find_user_cache",
    "hide_secrets",
    "is_secret",
    "knobs",
    "parse_layers",
    "parse_origins",
    "resolve",
    "shown_environment",
    "shown_value",
    "told_environment",
]

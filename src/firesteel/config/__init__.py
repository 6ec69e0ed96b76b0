"""Settings of the user: their declarations, how they are resolved, and all access to the environment."""

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
from firesteel.config.removed import REMOVED, RemovedSettingWarning
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
    "REMOVED",
    "BatchConfig",
    "CacheConfig",
    "Config",
    "ConfigError",
    "KernelConfig",
    "Knob",
    "ModelConfig",
    "ProcessConfig",
    "RemovedSettingWarning",
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

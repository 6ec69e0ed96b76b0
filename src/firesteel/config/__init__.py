"""Settings of the user: their declarations, how they are resolved, and all access to the environment."""

from firesteel.config.checks import LAYERS, parse_hosts, parse_layers, parse_origins
from firesteel.config.environment import (
    PLUGIN_VARIABLE,
    PREFIX,
    child_environment,
    find_allowed_plugins,
    find_reference_key,
    find_user_cache,
    has_own_threads,
    shown_environment,
    told_environment,
    wants_colour,
)
from firesteel.config.keys import list_keys
from firesteel.config.removed import REMOVED, RemovedSettingWarning
from firesteel.config.secrets import HIDDEN, find_in_text, hide_in_text, hide_secrets, is_secret, shown_value
from firesteel.config.sections import (
    BatchConfig,
    CacheConfig,
    Config,
    KernelConfig,
    ModelConfig,
    ProcessConfig,
)
from firesteel.config.server_section import ServerConfig
from firesteel.config.settings import (
    FILE_FLAG,
    FILE_VARIABLE,
    ConfigError,
    Setting,
    Settings,
    all_settings,
    resolve,
)
from firesteel.config.speculate_section import SpeculateConfig

__all__ = [
    "FILE_FLAG",
    "FILE_VARIABLE",
    "HIDDEN",
    "LAYERS",
    "PLUGIN_VARIABLE",
    "PREFIX",
    "REMOVED",
    "BatchConfig",
    "CacheConfig",
    "Config",
    "ConfigError",
    "KernelConfig",
    "ModelConfig",
    "ProcessConfig",
    "RemovedSettingWarning",
    "ServerConfig",
    "Setting",
    "Settings",
    "SpeculateConfig",
    "all_settings",
    "child_environment",
    "find_allowed_plugins",
    "find_in_text",
    "find_reference_key",
    "find_user_cache",
    "has_own_threads",
    "hide_in_text",
    "hide_secrets",
    "is_secret",
    "list_keys",
    "parse_hosts",
    "parse_layers",
    "parse_origins",
    "resolve",
    "shown_environment",
    "shown_value",
    "told_environment",
    "wants_colour",
]

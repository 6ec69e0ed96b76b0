"""Finds the reason why the plugin cannot serve gpt-oss in this process, if any. Importable without vLLM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from firesteel.config.environment import PLUGIN_VARIABLE, find_plugin_switch
from firesteel.config.settings import ConfigError, parse_switch
from firesteel.vllm_plugin.refusal.versions import VllmVersion, judge_version

CURE = f"or set {PLUGIN_VARIABLE}=off to run vLLM's own gpt-oss"


def is_switched_off(environ: Mapping[str, str] | None = None) -> bool:
    """Returns True only if the variable says off; `find_bad_switch` reports an invalid value."""
    return not find_bad_switch(environ) and not parse_switch(PLUGIN_VARIABLE, find_plugin_switch(environ))


def find_bad_switch(environ: Mapping[str, str] | None = None) -> str:
    """Returns what is wrong with the variable's value; empty if it says on or off."""
    try:
        parse_switch(PLUGIN_VARIABLE, find_plugin_switch(environ))
    except ConfigError as error:
        return str(error)
    return ""


def find_refusal() -> str:
    """Returns why gpt-oss cannot be served by this plugin, with the cure; empty if it can."""
    if bad_switch := find_bad_switch():
        return bad_switch
    version = imported_version()
    if version.refusal:
        return f"{version.refusal}, {CURE}"
    try:
        config_hooks()
        our_config_hook()
        our_inspection()
    except Exception as error:  # of any kind: whatever is broken must not lead to vLLM's own gpt-oss unnoticed
        return (
            f"the plugin cannot be imported in vLLM {version.text}: {type(error).__name__}: {error}; "
            f"reinstall firesteel, {CURE}"
        )
    return ""


def imported_version() -> VllmVersion:
    import vllm

    return judge_version(str(vllm.__version__))


def config_hooks() -> dict[str, Any]:
    """Returns vLLM's table of classes that check and change its configuration, keyed by architecture."""
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP

    hooks: dict[str, Any] = MODELS_CONFIG_MAP
    return hooks


def our_config_hook() -> Any:
    from firesteel.vllm_plugin.config import FiresteelGptOssConfig

    return FiresteelGptOssConfig


def our_inspection() -> Callable[[dict[str, Any], str], None]:
    from firesteel.vllm_plugin.inspection import inspect_here

    return inspect_here

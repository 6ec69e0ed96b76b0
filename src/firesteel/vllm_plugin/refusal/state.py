"""State of the plugin in this environment, active or not, found without importing vLLM."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass

from firesteel.config import PLUGIN_VARIABLE, find_allowed_plugins
from firesteel.vllm_plugin.refusal.reason import CURE, find_bad_switch, is_switched_off
from firesteel.vllm_plugin.refusal.versions import VllmVersion, find_installed

GROUP, NAME = "vllm.general_plugins", "firesteel"


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginState:
    version: VllmVersion
    words: str
    cure: str = ""
    is_active: bool = False  # gpt-oss runs in our model
    is_refused: bool = False  # gpt-oss fails to load


def find_state(environ: Mapping[str, str] | None = None) -> PluginState | None:
    """Returns None if vLLM is not installed."""
    version = find_installed()
    if version is None:
        return None
    vllm = f"vLLM {version.text} ({version.support.value})"
    if not importlib.metadata.entry_points(group=GROUP, name=NAME):
        words = f"{vllm}; the plugin is not active: firesteel runs from its sources and has no entry point"
        return PluginState(version=version, words=words, cure="pip install firesteel beside vLLM")
    allowed = find_allowed_plugins(environ)
    if allowed is not None and NAME not in allowed:
        words = f"{vllm}; the plugin is not active: VLLM_PLUGINS={','.join(allowed)}"
        return PluginState(version=version, words=words, cure=f"add {NAME} to VLLM_PLUGINS, or unset it")
    if is_switched_off(environ):
        words = f"{vllm}; the plugin is not active: {PLUGIN_VARIABLE}=off"
        return PluginState(version=version, words=words, cure=f"unset {PLUGIN_VARIABLE}")
    if bad_switch := find_bad_switch(environ):
        return PluginState(version=version, words=f"{vllm}; gpt-oss is refused", cure=bad_switch, is_refused=True)
    if version.refusal:
        cure = f"{version.refusal}, {CURE}"
        return PluginState(version=version, words=f"{vllm}; gpt-oss is refused", cure=cure, is_refused=True)
    return PluginState(version=version, words=f"{vllm}; the plugin is active for gpt-oss", is_active=True)

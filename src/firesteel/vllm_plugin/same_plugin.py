"""Makes sure that all processes of a vLLM run the same plugin, on all nodes.

vLLM's main process checks the configuration and sends it to the workers. A worker on a node without firesteel, or
with the plugin switched off, would run vLLM's own gpt-oss as one of our ranks; a worker with the plugin whose main
process runs without it would get a configuration made for vLLM's own.
"""

from __future__ import annotations

from typing import Any

from firesteel.config import PLUGIN_VARIABLE
from firesteel.errors import UserError
from firesteel.version import find_version

MARK = "firesteel"  # key of vLLM's additional configuration: the version in the main process
WORKER = (
    "firesteel.vllm_plugin.worker.PluginWorker"  # imported by every worker; fails where the plugin does not run
)
CURE = f"install the same firesteel and set {PLUGIN_VARIABLE} alike on all nodes (docs/vllm.md)"


def mark_config(vllm_config: Any) -> None:
    """Adds our version and worker extension to the configuration; runs in the main process."""
    vllm_config.additional_config = {**(vllm_config.additional_config or {}), MARK: find_version()}
    vllm_config.parallel_config.worker_extension_cls = WORKER


def check_mark(vllm_config: Any) -> None:
    """Raises in a worker if the main process runs without the plugin or with another version of it."""
    additional = vllm_config.additional_config
    version = additional.get(MARK) if isinstance(additional, dict) else None
    if version is None:
        raise UserError(f"firesteel: this worker has the plugin, but vLLM's main process runs without it: {CURE}")
    if version != find_version():
        raise UserError(
            f"firesteel: this worker has firesteel {find_version()}, but vLLM's main process has {version}: {CURE}"
        )

"""The class that vLLM adds to its workers. Importing it fails if the plugin does not run in this process.

It has no attributes: what matters is that vLLM imports it in every worker, also on nodes where `register` replaced
nothing.
"""

from __future__ import annotations

from firesteel.config import PLUGIN_VARIABLE
from firesteel.errors import UserError
from firesteel.vllm_plugin.refusal.reason import find_refusal, is_switched_off
from firesteel.vllm_plugin.same_plugin import CURE


def check_worker() -> None:
    """Raises if gpt-oss would run on vLLM's own kernels in this process."""
    if is_switched_off():
        raise UserError(
            f"firesteel: {PLUGIN_VARIABLE} switches the plugin off in this worker, but not in vLLM's main process: "
            f"{CURE}"
        )
    if refusal := find_refusal():
        raise UserError(f"firesteel: {refusal}")


class PluginWorker:
    """The class that vLLM's configuration names as `worker_extension_cls`."""


check_worker()

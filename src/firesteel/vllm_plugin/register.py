"""The entry point `vllm.general_plugins`: replaces vLLM's gpt-oss by ours, or refuses gpt-oss with the reason.

vLLM calls `register` in each of its processes. It hides an error while the plugin is imported and then runs its own
gpt-oss, and an error in `register` would end it for every model. So this file imports neither vLLM nor torch, and
`register` does not raise: what is wrong is raised when a gpt-oss model is loaded.
"""

from __future__ import annotations

import logging
from contextlib import suppress

from firesteel.config.environment import PLUGIN_VARIABLE
from firesteel.vllm_plugin.refusal.reason import (
    config_hooks,
    find_refusal,
    imported_version,
    is_switched_off,
    our_config_hook,
    our_inspection,
)
from firesteel.vllm_plugin.refusal.versions import VersionSupport

ARCHITECTURE = "GptOssForCausalLM"
# Names, not classes: vLLM imports them in a process of its own, so that CUDA is not initialised here.
MODEL = "firesteel.vllm_plugin.model:FiresteelGptOss"
REFUSED_MODEL = "firesteel.vllm_plugin.refusal.refused:RefusedGptOss"
logger = logging.getLogger("vllm.firesteel")  # vLLM shows what its own loggers and their children write


def register() -> None:
    """Registers our model class; vLLM calls it in each process, possibly several times.

    Models other than gpt-oss are not affected.
    """
    if is_switched_off():
        logger.debug("firesteel: the plugin is off (%s); gpt-oss runs on vLLM's own kernels", PLUGIN_VARIABLE)
        return
    from vllm import ModelRegistry

    if refusal := find_refusal():
        logger.warning("firesteel: %s", refusal)
        refuse()
        return
    version = imported_version()
    if version.support in (VersionSupport.PYTHON_TESTED, VersionSupport.UNTESTED_PATCH):
        logger.warning("firesteel: vLLM %s: %s", version.text, version.support.value)
    ModelRegistry.register_model(ARCHITECTURE, MODEL)
    our_inspection()(ModelRegistry.models, ARCHITECTURE)
    config_hooks()[ARCHITECTURE] = our_config_hook()


def refuse() -> None:
    """Makes vLLM fail for gpt-oss: when it checks its configuration, or else when it builds the model."""
    from vllm import ModelRegistry

    from firesteel.vllm_plugin.refusal.refused import RefusedGptOssConfig

    ModelRegistry.register_model(ARCHITECTURE, REFUSED_MODEL)
    with suppress(ImportError):  # a version without this table
        config_hooks()[ARCHITECTURE] = RefusedGptOssConfig

"""Our settings inside vLLM, where variables and a file are all that can give them: vLLM parses the flags."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from firesteel.config import Config, all_settings, resolve
from firesteel.errors import UserError
from firesteel.kernels.operands.activation import FP8
from firesteel.kernels.tiles.tile_pin import AUTO

_log = logging.getLogger("vllm.firesteel")
# What the plugin reads. vLLM has flags of its own for the rest: device, batches, cache and server.
EFFECTIVE = {
    "preset",
    "kernels",
    "require",
    "activation",
    "prefill_activation",
    "tile",
    "tiles_file",
    "mxfp4_layers",
    "sinks",
    "batch_invariant",
    "cuda_graphs",
    "prefill_graphs",
    "dependent_launch",
    "kernel_cache_dir",
    "kv_dtype",
    "kv_scales",
}
# Inside vLLM neither ours nor vLLM's own: no flag of vLLM would help.
SPECULATION = {"speculate", "draft_model", "num_speculative_tokens", "adapt_speculation"}


def find_config(vllm_config: Any, *, is_first: bool, environ: Mapping[str, str] | None = None) -> Config:
    """Returns our settings, with graphs off if vLLM captures none. The first rank names settings without effect."""
    settings = resolve(environ=environ)
    kernels = settings.config.kernels
    if kernels.prefill_activation not in (AUTO, kernels.activation):
        both = "" if kernels.prefill_activation == FP8 else ", and FIRESTEEL_ACTIVATION for both"
        raise UserError(
            f"prefill_activation = {kernels.prefill_activation} ({settings.origins['prefill_activation']}): inside "
            f"vLLM prompts and decoded tokens are rounded alike; set FIRESTEEL_PREFILL_ACTIVATION=auto{both}"
        )
    if is_first:
        _warn_of(settings.origins)
    has_graphs = kernels.cuda_graphs and vllm_config.compilation_config.cudagraph_mode.has_full_cudagraphs()
    return replace(settings.config, kernels=replace(kernels, cuda_graphs=has_graphs))


def _warn_of(origins: Mapping[str, str]) -> None:
    """Names the variables of the settings that the user has given and the plugin does not read."""
    declared = all_settings()
    given = [name for name, origin in origins.items() if origin.startswith(("environment", "file"))]
    unread = [name for name in given if name not in EFFECTIVE]
    others = [declared[name].env for name in unread if name not in SPECULATION]
    drafting = [declared[name].env for name in unread if name in SPECULATION]
    if others:
        _log.warning("firesteel: no effect inside vLLM, which has flags of its own: %s", ", ".join(others))
    if drafting:
        _log.warning("firesteel: no effect, as nothing is drafted inside vLLM: %s", ", ".join(drafting))

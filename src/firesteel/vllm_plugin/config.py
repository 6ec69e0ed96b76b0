"""Adapts vLLM's configuration to our model class: changes defaults and refuses unsupported options by name."""
# mypy: disable-error-code="import-not-found,misc"

from __future__ import annotations

from typing import Any

from vllm.config import CUDAGraphMode
from vllm.config.compilation import CompilationMode
from vllm.model_executor.models.config import GptOssForCausalLMConfig

from firesteel.config import resolve
from firesteel.vllm_plugin.options.unsupported import list_unsupported
from firesteel.vllm_plugin.same_plugin import WORKER, mark_config

CURE = "or set FIRESTEEL_VLLM=off to run gpt-oss by stock vLLM"
EXACT = 16  # each number of requests up to this has its own graph: a padded row would read experts for nothing


class FiresteelGptOssConfig(GptOssForCausalLMConfig):
    """Replaces vLLM's hook for gpt-oss."""

    @staticmethod
    def verify_and_update_config(vllm_config: Any) -> None:
        """Checks and changes the configuration; vLLM calls it once the user's options are known."""
        sizes = vllm_config.compilation_config.cudagraph_capture_sizes
        GptOssForCausalLMConfig.verify_and_update_config(vllm_config)
        refuse(vllm_config)
        use_full_graphs(vllm_config, sizes)
        mark_config(vllm_config)


def refuse(vllm_config: Any) -> None:
    """Raises for the first option that our model class does not support."""
    for option, is_used in list_unsupported(vllm_config, WORKER):
        if is_used:
            raise ValueError(f"firesteel does not support {option} inside vLLM: leave it out, {CURE}")


def use_full_graphs(vllm_config: Any, sizes: list[int] | None) -> None:
    """Switches vLLM's compilation off, and its full graphs of decoding steps on, unless the user wants none.

    `sizes` are the capture sizes that the user asked for, if any.
    """
    compilation = vllm_config.compilation_config
    compilation.mode = CompilationMode.NONE
    is_eager = vllm_config.model_config.enforce_eager or not resolve().config.kernels.cuda_graphs
    if is_eager or compilation.cudagraph_mode == CUDAGraphMode.NONE:
        compilation.cudagraph_mode = CUDAGraphMode.NONE
        return
    compilation.cudagraph_mode = CUDAGraphMode.FULL_DECODE_ONLY
    most = vllm_config.scheduler_config.max_num_seqs
    chosen = sorted(sizes) if sizes else capture_sizes(most)
    compilation.cudagraph_capture_sizes = chosen
    compilation.max_cudagraph_capture_size = chosen[-1]


def capture_sizes(most: int) -> list[int]:
    """Returns numbers of requests up to `most`: each up to EXACT, then powers of two and three quarters of them."""
    sizes = list(range(1, min(most, EXACT) + 1))
    size = EXACT
    while size < most:
        sizes += [count for count in (3 * size // 2, 2 * size) if count <= most]
        size *= 2
    return sizes if sizes[-1] == most else [*sizes, most]

"""Adapts vLLM's configuration to our model class: changes defaults and refuses unsupported options by name."""
# mypy: disable-error-code="import-not-found,misc"

from __future__ import annotations

from typing import Any

from vllm.config import CUDAGraphMode
from vllm.config.compilation import CompilationMode
from vllm.model_executor.models.config import GptOssForCausalLMConfig

from firesteel.vllm_plugin.same_plugin import WORKER, mark_config

CURE = "or set FIRESTEEL_VLLM=off to run gpt-oss by stock vLLM"
LOAD_FORMATS = ("auto", "hf", "safetensors", "dummy")
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
    for option, is_used in list_unsupported(vllm_config):
        if is_used:
            raise ValueError(f"firesteel does not support {option} inside vLLM: leave it out, {CURE}")


def list_unsupported(vllm_config: Any) -> list[tuple[str, bool]]:
    """Lists (option, whether it is used)."""
    parallel, cache = vllm_config.parallel_config, vllm_config.cache_config
    load_format = str(getattr(vllm_config.load_config.load_format, "value", vllm_config.load_config.load_format))

    def size(name: str) -> int:
        return getattr(parallel, name, 1) or 1

    return [
        ("pipeline parallelism (--pipeline-parallel-size)", size("pipeline_parallel_size") > 1),
        ("expert parallelism (--enable-expert-parallel)", bool(parallel.enable_expert_parallel)),
        ("data parallelism (--data-parallel-size)", size("data_parallel_size") > 1),
        ("decode context parallelism (--decode-context-parallel-size)", size("decode_context_parallel_size") > 1),
        ("prefill context parallelism", size("prefill_context_parallel_size") > 1),
        ("dual batch overlap (--enable-dbo)", bool(getattr(parallel, "enable_dbo", False))),
        ("LoRA (--enable-lora)", vllm_config.lora_config is not None),
        ("vLLM's speculation (--speculative-config)", vllm_config.speculative_config is not None),
        ("KV connectors (--kv-transfer-config)", vllm_config.kv_transfer_config is not None),
        (
            f"--kv-cache-dtype {cache.cache_dtype} (FIRESTEEL_KV_DTYPE=fp8 stores E4M3)",
            cache.cache_dtype not in ("auto", "bfloat16"),
        ),
        (f"the load format {load_format} (--load-format)", load_format not in LOAD_FORMATS),
        ("prompt embeddings (--enable-prompt-embeds)", bool(vllm_config.model_config.enable_prompt_embeds)),
        ("worker extensions (--worker-extension-cls)", parallel.worker_extension_cls not in ("", WORKER)),
        ("sleep mode (--enable-sleep-mode)", bool(vllm_config.model_config.enable_sleep_mode)),
    ]


def use_full_graphs(vllm_config: Any, sizes: list[int] | None) -> None:
    """Switches vLLM's compilation off, and its full graphs of decoding steps on, unless the user wants none.

    `sizes` are the capture sizes that the user asked for, if any.
    """
    compilation = vllm_config.compilation_config
    compilation.mode = CompilationMode.NONE
    if vllm_config.model_config.enforce_eager or compilation.cudagraph_mode == CUDAGraphMode.NONE:
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

"""Options of vLLM that our model class does not support, each with the flag that asks for it.

Most would be ignored without a word: vLLM expects the model class to honour them, or to refuse them.
"""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

from typing import Any

from vllm import envs

LOAD_FORMATS = ("auto", "hf", "safetensors", "dummy")
KV_DTYPES = ("auto", "bfloat16")
BLOCK_SIZES = (16, 32, 64, 128)  # tokens per page that the attention kernels of a GPU take

Option = tuple[str, bool]  # its name, and whether it is used


def list_unsupported(vllm_config: Any, our_worker: str) -> list[Option]:
    """Lists the options; those that are not in each supported version of vLLM are unused if they are missing.

    `our_worker` is the one worker extension that is supported.
    """
    return [
        *_list_parallel(vllm_config.parallel_config, our_worker),
        *_list_features(vllm_config),
        *_list_kernels(vllm_config),
        *_list_weights(vllm_config),
        *_list_cache(vllm_config),
    ]


def _list_parallel(parallel: Any, our_worker: str) -> list[Option]:
    def is_split(name: str) -> bool:
        return (getattr(parallel, name, 1) or 1) > 1

    return [
        ("pipeline parallelism (--pipeline-parallel-size)", is_split("pipeline_parallel_size")),
        ("expert parallelism (--enable-expert-parallel)", bool(parallel.enable_expert_parallel)),
        ("data parallelism (--data-parallel-size)", is_split("data_parallel_size")),
        ("decode context parallelism (--decode-context-parallel-size)", is_split("decode_context_parallel_size")),
        ("prefill context parallelism", is_split("prefill_context_parallel_size")),
        ("dual batch overlap (--enable-dbo, --ubatch-size)", bool(parallel.use_ubatching)),
        ("worker extensions (--worker-extension-cls)", parallel.worker_extension_cls not in ("", our_worker)),
    ]


def _list_features(vllm_config: Any) -> list[Option]:
    model = vllm_config.model_config
    routes = getattr(model, "enable_return_routed_experts", False) or getattr(
        getattr(vllm_config, "aux_output_config", None), "enable_return_routed_experts", False
    )
    return [
        ("LoRA (--enable-lora)", vllm_config.lora_config is not None),
        ("vLLM's speculation (--speculative-config)", vllm_config.speculative_config is not None),
        ("prompt embeddings (--enable-prompt-embeds)", bool(model.enable_prompt_embeds)),
        ("pooling, as for embeddings (--runner, --convert)", model.runner_type != "generate"),
        ("routed experts in the answer (--enable-return-routed-experts)", bool(routes)),
        ("sleep mode (--enable-sleep-mode)", bool(model.enable_sleep_mode)),
    ]


def _list_kernels(vllm_config: Any) -> list[Option]:
    attention, kernels = vllm_config.attention_config, vllm_config.kernel_config
    backends = bool(attention.backend or getattr(attention, "backend_per_kind", None))
    return [
        ("a choice of attention (--attention-backend)", backends),
        ("a choice of the experts' kernel (--moe-backend)", kernels.moe_backend != "auto"),
        ("a choice of the matmuls' kernel (--linear-backend)", kernels.linear_backend != "auto"),
        ("vLLM's kernel of a whole layer (--monokernel)", bool(getattr(kernels, "monokernel", False))),
        (
            "vLLM's batch invariance (VLLM_BATCH_INVARIANT; FIRESTEEL_BATCH_INVARIANT is ours)",
            bool(envs.VLLM_BATCH_INVARIANT),
        ),
    ]


def _list_weights(vllm_config: Any) -> list[Option]:
    model, load, offload = vllm_config.model_config, vllm_config.load_config, vllm_config.offload_config
    load_format = str(getattr(load.load_format, "value", load.load_format))
    is_offloaded = offload.uva.cpu_offload_gb > 0 or offload.prefetch.offload_group_size > 0
    return [
        (f"the load format {load_format} (--load-format)", load_format not in LOAD_FORMATS),
        ("changes of the checkpoint's configuration (--hf-overrides)", bool(model.hf_overrides)),
        ("the configuration of another folder (--hf-config-path)", bool(model.hf_config_path)),
        ("weights in the host's memory (--cpu-offload-gb, --offload-group-size)", is_offloaded),
        ("weights that change (--weight-transfer-config)", vllm_config.weight_transfer_config is not None),
        # vLLM itself drops names of other checkpoint formats, but keeps what quantises while it loads
        ("another quantization (--quantization)", getattr(model, "quantization_config", None) is not None),
    ]


def _list_cache(vllm_config: Any) -> list[Option]:
    cache = vllm_config.cache_config
    return [
        (f"--block-size {cache.block_size}", cache.block_size not in (None, *BLOCK_SIZES)),
        ("KV connectors (--kv-transfer-config)", vllm_config.kv_transfer_config is not None),
        # vLLM makes a KV connector of it after it has called us
        ("KV in the host's memory (--kv-offloading-size)", cache.kv_offloading_size is not None),
        (
            f"--kv-cache-dtype {cache.cache_dtype} (FIRESTEEL_KV_DTYPE=fp8 stores E4M3)",
            cache.cache_dtype not in KV_DTYPES,
        ),
    ]

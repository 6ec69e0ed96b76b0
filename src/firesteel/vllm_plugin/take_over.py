"""Takes over the inputs of a step from vLLM: by one kernel on a GPU, by plain torch on a CPU."""

from __future__ import annotations

from torch import Tensor

from firesteel.vllm_plugin.inputs import StepInputs
from firesteel.vllm_plugin.step import VllmStep


def load(inputs: StepInputs, step: VllmStep, tokens: int, requests: int) -> None:
    """Takes over a step, padded to `tokens` and `requests`; does not wait for the device."""
    if not inputs.token_ids.is_cuda:
        inputs.load_by_torch(step, tokens, requests)
        return
    from firesteel.vllm_plugin.inputs_kernel import load_on_gpu

    load_on_gpu(inputs, step, tokens, requests)


def load_decoding(inputs: StepInputs, step: VllmStep, embedding: Tensor, residual: Tensor) -> None:
    """Takes over a step of one token per request, and writes the embeddings of its tokens to `residual`."""
    from firesteel.vllm_plugin.inputs_kernel import load_on_gpu

    load_on_gpu(inputs, step, step.num_tokens, step.num_tokens, embedding, residual)

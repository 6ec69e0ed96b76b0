"""Steps with prompts: replayed as CUDA graphs of padded sizes, or run op by op if there is no graph.

Op by op, a step on a GPU is padded to the same size, so that it gives the same bits as the graph.
"""

from __future__ import annotations

import logging
import time

import torch
from torch import Tensor

from firesteel.device import DeviceSpec
from firesteel.model.gpt_oss import GptOss
from firesteel.model.graphs import StepGraph
from firesteel.model.prompt_sizes import PromptSize, find_size, prompt_sizes
from firesteel.types import KvCache
from firesteel.vllm_plugin.inputs import StepInputs
from firesteel.vllm_plugin.step import VllmStep
from firesteel.vllm_plugin.take_over import load

_log = logging.getLogger("vllm.firesteel")


class PromptRunner:
    """Runs steps through the network over one KV cache."""

    def __init__(self, model: GptOss, cache: KvCache, inputs: StepInputs, device: DeviceSpec) -> None:
        self.model, self.cache, self.inputs, self.device = model, cache, inputs, device
        self.most_requests = inputs.kv_lens.shape[0]
        self._graphs: dict[PromptSize, StepGraph] = {}

    def run(self, step: VllmStep) -> tuple[Tensor, None, str]:
        """Returns the residual [T, H] of all tokens, in memory that the next step may overwrite; no logits yet."""
        size = self._find_size(step)
        graph = self._graphs.get(size)
        if graph is None:
            return self.run_ops(step, size), None, f"prompt step op by op, padded to {size.tokens} tokens"
        load(self.inputs, step, *size)
        residual = graph.replay()
        assert isinstance(residual, Tensor)
        return residual[: step.num_tokens], None, f"prompt graph of {size.tokens}"

    def run_ops(self, step: VllmStep, size: PromptSize | None = None) -> Tensor:
        """Does the work of `run` op by op, padded to `size` if it is given."""
        tokens, requests = size or (step.num_tokens, step.num_requests)
        load(self.inputs, step, tokens, requests)
        return self.model.forward_residual(self.inputs.batch(tokens, requests), self.cache)[: step.num_tokens]

    @torch.inference_mode()
    def capture(self, most_tokens: int) -> None:
        """Captures the graphs of all sizes up to `most_tokens`, the largest first: the others reuse its memory."""
        if not self.device.is_cuda:
            return
        start, pool = time.perf_counter(), torch.cuda.graph_pool_handle()
        for size in reversed(prompt_sizes(most_tokens, self.most_requests)):
            self._graphs[size] = self._capture(size, pool)
        seconds = time.perf_counter() - start
        _log.info("firesteel: captured %d prompt sizes in %.1f s", len(self._graphs), seconds)

    def _find_size(self, step: VllmStep) -> PromptSize:
        exact = PromptSize(step.num_tokens, step.num_requests)
        if not self.device.is_cuda:
            return exact
        return find_size(*exact, self.most_requests) or exact

    def _capture(self, size: PromptSize, pool: object) -> StepGraph:
        batch, model, cache = self.inputs.batch(*size), self.model, self.cache
        self.inputs.rest()
        return StepGraph(
            lambda: model.forward_residual(batch, cache),
            model.kernels.ledger,
            self.device,
            undo=self.inputs.rest,
            warm_up=lambda: model.forward_residual(batch, cache, model.num_layers_of_each_kind),
            pool=pool,
        )

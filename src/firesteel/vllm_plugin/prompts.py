"""Steps with prompts: replayed as CUDA graphs of padded sizes, or run op by op if there is no graph.

Op by op, a step on a GPU is padded to the same size, so that it gives the same bits as the graph.
"""

from __future__ import annotations

import logging
import time
from typing import cast

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
LOGIT_REQUESTS = 64  # of the largest step that also computes logits: those of more would hold much memory
Computed = tuple[Tensor, Tensor | None]  # residual [T, H], logits [R, V]


class PromptRunner:
    """Runs steps through the network over one KV cache."""

    def __init__(self, model: GptOss, cache: KvCache, inputs: StepInputs, device: DeviceSpec) -> None:
        self.model, self.cache, self.inputs, self.device = model, cache, inputs, device
        self.most_requests = inputs.kv_lens.shape[0]
        self._graphs: dict[PromptSize, StepGraph] = {}

    def run(self, step: VllmStep) -> tuple[Tensor, Tensor | None, str]:
        """Returns the residual [T, H] of all tokens and the logits [R, V] of each request's last, if computed.

        Both are in memory that the next step may overwrite.
        """
        size = self._find_size(step)
        load(self.inputs, step, *size)
        graph = self._graphs.get(size)
        if graph is None:
            residual, logits = self.compute(size)
            kind = f"prompt step op by op, padded to {size.tokens} tokens"
        else:
            residual, logits = cast(Computed, graph.replay())
            kind = f"prompt graph of {size.tokens}"
        return residual[: step.num_tokens], None if logits is None else logits[: step.num_requests], kind

    def run_ops(self, step: VllmStep) -> Tensor:
        """Returns the residual of all tokens of a step of any kind, computed op by op and not padded."""
        tokens, requests = step.num_tokens, step.num_requests
        load(self.inputs, step, tokens, requests)
        return self.model.forward_residual(self.inputs.batch(tokens, requests), self.cache)

    def compute(self, size: PromptSize, num_layers: int | None = None) -> Computed:
        """Computes the loaded step; with one rank and few requests also the logits, as our engine does."""
        model, inputs = self.model, self.inputs
        if model.ranks is None and size.requests <= min(LOGIT_REQUESTS, size.tokens - 1):
            return model.forward_with_logits(inputs.prompt_batch(*size), self.cache, num_layers)
        return model.forward_residual(inputs.batch(*size), self.cache, num_layers), None

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
        self.inputs.rest()
        return StepGraph(
            lambda: self.compute(size),
            self.model.kernels.ledger,
            self.device,
            undo=self.inputs.rest,
            warm_up=lambda: self.compute(size, self.model.num_layers_of_each_kind),
            pool=pool,
        )

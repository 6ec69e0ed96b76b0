"""Steps with prompts: replayed as CUDA graphs over padded sizes, or op by op where no size fits."""

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

    def __init__(
        self, model: GptOss, cache: KvCache, inputs: StepInputs, device: DeviceSpec, *, captures: bool
    ) -> None:
        self.model, self.cache, self.inputs, self.device = model, cache, inputs, device
        self.captures = captures and device.is_cuda
        self.most_requests = inputs.kv_lens.shape[0]
        self._graphs: dict[PromptSize, StepGraph] = {}

    def run(self, step: VllmStep) -> Tensor:
        """Returns the residual [T, H] of all tokens, in memory that the next step may overwrite."""
        size = find_size(step.num_tokens, step.num_requests, self.most_requests) if self.captures else None
        graph = self._graphs.get(size) if size is not None else None
        if graph is None or size is None:
            return self.run_ops(step)
        load(self.inputs, step, size.tokens, size.requests)
        residual = graph.replay()
        assert isinstance(residual, Tensor)
        return residual[: step.num_tokens]

    def run_ops(self, step: VllmStep) -> Tensor:
        """As `run`, op by op."""
        tokens, requests = step.num_tokens, step.num_requests
        load(self.inputs, step, tokens, requests)
        return self.model.forward_residual(self.inputs.batch(tokens, requests), self.cache)

    @torch.inference_mode()
    def prepare(self, most_tokens: int) -> None:
        """Captures the graphs of all sizes up to `most_tokens`, the largest first: the others reuse its memory."""
        if not self.captures:
            return
        start, pool = time.perf_counter(), torch.cuda.graph_pool_handle()
        for size in reversed(prompt_sizes(most_tokens, self.most_requests)):
            self._graphs[size] = self._capture(size, pool)
        _log.info("firesteel: captured %d prompt sizes in %.1f s", len(self._graphs), time.perf_counter() - start)

    def _capture(self, size: PromptSize, pool: object) -> StepGraph:
        batch = self.inputs.batch(*size)
        model, cache = self.model, self.cache

        def rest() -> None:
            """Sets inputs with which a run stores nothing."""
            for numbers in (self.inputs.full_slots, self.inputs.window_slots):
                numbers.fill_(-1)
            for numbers in (self.inputs.token_ids, self.inputs.positions, self.inputs.kv_lens):
                numbers.zero_()
            self.inputs.query_starts.zero_()
            self.inputs.num_tokens.zero_()

        rest()
        return StepGraph(
            lambda: model.forward_residual(batch, cache),
            model.kernels.ledger,
            self.device,
            undo=rest,
            warm_up=lambda: model.forward_residual(batch, cache, model.num_layers_of_each_kind),
            pool=pool,
        )

"""All that runs over one KV cache: inputs, prompts, decoding steps. Made anew when vLLM binds other pages."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from firesteel.kernels.ahead import compile_ahead
from firesteel.model.decode import MOST_REQUESTS
from firesteel.model.graphs import uncounted
from firesteel.model.prompt_sizes import PromptSize, prompt_sizes
from firesteel.types import KvCache
from firesteel.vllm_plugin.assembly import Assembly
from firesteel.vllm_plugin.decoding import FusedDecoding
from firesteel.vllm_plugin.inputs import StepInputs
from firesteel.vllm_plugin.prompts import PromptRunner
from firesteel.vllm_plugin.step import VllmStep, idle_step
from firesteel.vllm_plugin.take_over import load

_log = logging.getLogger("vllm.firesteel")


class Runtime:
    """Computes steps of vLLM over `cache`."""

    def __init__(
        self, assembly: Assembly, cache: KvCache, *, most_tokens: int, most_requests: int, max_context: int
    ) -> None:
        self.assembly, self.network, self.cache = assembly, assembly.model, cache
        page_size = cache.keys[0].shape[2]
        self.most_tokens = most_tokens
        self.inputs = StepInputs.new(
            assembly.device.torch_device,
            num_tokens=max(prompt_sizes(most_tokens, most_requests)[-1].tokens, most_tokens),
            num_requests=most_requests,
            num_pages=-(-max_context // page_size),
            page_size=page_size,
            window=max(size for size in assembly.held.windows if size is not None),
        )
        self.prompts = PromptRunner(self.network, cache, self.inputs, assembly.device)
        self.fused: FusedDecoding | None = None
        if assembly.fused is not None:
            dependent = assembly.config.kernels.dependent_launch
            self.fused = FusedDecoding(self.network, cache, self.inputs, assembly.fused, dependent=dependent)

    def run(self, step: VllmStep) -> tuple[Tensor, Tensor | None, str]:
        """Returns the residual [T, H] of all tokens, the logits if they are computed already, and how it ran."""
        if not step.is_decoding:
            return self.prompts.run(step)
        if self.fused is not None and self.fused.accepts(step.num_requests):
            computed = self.fused.run(step)
            if computed is not None:
                return *computed, "fused decoding step, not in a graph"
        return self.prompts.run_ops(step), None, "decoding step op by op, not in a graph"

    @torch.inference_mode()
    def compile(self, decode_sizes: Sequence[int]) -> None:
        """Compiles every kernel that steps launch, in parallel; `decode_sizes` are requests of decoding steps."""
        if not self.assembly.device.is_cuda:
            return
        start, model, inputs = time.perf_counter(), self.network, self.inputs
        few, width = model.num_layers_of_each_kind, inputs.full_table.shape[1]
        device, most = inputs.token_ids.device, self.prompts.most_requests
        with uncounted(model.kernels.ledger), compile_ahead() as ahead:
            for size in (*prompt_sizes(self.most_tokens, most), PromptSize(self.most_tokens, 1)):
                load(inputs, idle_step(device, 2, 1, width), *size)
                self.prompts.compute(size, few)
            for count in decode_sizes:
                if self.fused is not None and count <= MOST_REQUESTS:
                    self.fused.run(idle_step(device, count, count, width))
                else:
                    model.forward_residual(inputs.batch(count, count), self.cache, few)
            ahead.wait()
            number = len(ahead)
        _log.info("firesteel: %d kernels ready in %.1f s", number, time.perf_counter() - start)

    def capture_prompts(self) -> None:
        """Captures the prompt graphs, unless the settings or several ranks forbid it."""
        kernels = self.assembly.config.kernels
        if kernels.prefill_graphs and kernels.cuda_graphs and self.network.ranks is None:
            self.prompts.capture(self.most_tokens)

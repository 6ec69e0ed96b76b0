"""The model class that vLLM instantiates for gpt-oss: our network on vLLM's KV cache.

A step of decoding requests runs in the fused kernels, which vLLM captures into its full CUDA graphs. Steps with
prompts replay graphs of our own, inside `forward`. `forward` returns the residual before the final norm, since the
fused lm_head computes that norm too.
"""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from vllm.forward_context import get_forward_context

from firesteel.model.decode import MOST_REQUESTS
from firesteel.model.weights import named_tensors
from firesteel.types import KvCache
from firesteel.vllm_plugin.assembly import DUMMY, assemble, find_folder, random_weights, read_weights
from firesteel.vllm_plugin.decoding import FusedDecoding
from firesteel.vllm_plugin.inputs import StepInputs
from firesteel.vllm_plugin.kv import KvLayer, bound_cache, scratch_cache
from firesteel.vllm_plugin.prompts import PromptRunner
from firesteel.vllm_plugin.step import VllmStep

_log = logging.getLogger("vllm.firesteel")


class FiresteelGptOss(nn.Module):
    """gpt-oss by firesteel's kernels."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        self.vllm_config = vllm_config
        self.assembly = assemble(vllm_config)
        spec, device = self.assembly.held, self.assembly.device
        self.network = self.assembly.model
        if vllm_config.load_config.load_format == DUMMY:
            self.network.weights = random_weights(self.assembly, vllm_config.model_config.seed)
        self.kv_layers = nn.ModuleList(
            KvLayer(
                vllm_config,
                f"model.layers.{number}.attn",
                num_heads=spec.num_heads,
                num_kv_heads=spec.num_kv_heads,
                head_dim=spec.head_dim,
                window=window,
                dtype=device.dtype,
            )
            for number, window in enumerate(spec.windows)
        )
        windows = spec.windows
        self._full_name = f"model.layers.{windows.index(None)}.attn"
        self._window_name = f"model.layers.{next(n for n, size in enumerate(windows) if size is not None)}.attn"
        self._bound: Tensor | None = None  # pages of the first layer for which the runners below were made
        self._prompts: PromptRunner | None = None
        self._fused: FusedDecoding | None = None

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        return self.network.weights.embedding[input_ids].to(self.network.dtype)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Reads the checkpoint by our own reader, in parallel; vLLM's iterator only makes sure that it is here."""
        next(iter(weights), None)
        folder = find_folder(self.vllm_config.model_config)
        self.network.weights, seconds = read_weights(self.assembly, folder)
        _log.info("firesteel: read the weights in %.1f s", seconds)
        return set(named_tensors(self.network.weights, self.assembly.held))

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        metadata = get_forward_context().attn_metadata
        if metadata is None:
            return self._profile(input_ids)
        full, window = metadata[self._full_name], metadata[self._window_name]
        step = VllmStep(
            token_ids=input_ids,
            positions=positions,
            query_starts=full.query_starts,
            kv_lens=full.kv_lens,
            full_slots=full.slots,
            window_slots=window.slots,
            full_table=full.block_table,
            window_table=window.block_table,
            most_queries=full.most_queries,
        )
        prompts = self._prepared()
        fused = self._fused
        if not step.is_decoding:
            return prompts.run(step)
        if fused is not None and fused.accepts(step.num_requests):
            residual = fused.run(step)
            if residual is not None:
                return residual
        return prompts.run_ops(step)

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Returns fp32 logits [.., V] of rows that `forward` returned."""
        fused, count = self._fused, hidden_states.shape[0]
        if fused is not None and 0 < count <= MOST_REQUESTS:
            return fused.logits(hidden_states)
        x, _ = self.network.norm(hidden_states, None, self.network.weights.norm)
        return self.network.logits(x.plain)

    def _prepared(self) -> PromptRunner:
        """Returns the runner of prompts, made anew whenever vLLM has bound other pages."""
        first = self.kv_layers[0]
        assert isinstance(first, KvLayer)
        if self._prompts is None or self._bound is not first.kv_cache:
            self._bound = first.kv_cache
            self._prepare(bound_cache(self._layers()))
        assert self._prompts is not None
        return self._prompts

    def _prepare(self, cache: KvCache) -> None:
        assembly, kernels = self.assembly, self.assembly.config.kernels
        inputs = self._new_inputs(cache.keys[0].shape[2])
        captures = kernels.prefill_graphs and kernels.cuda_graphs and not self._is_eager()
        self._prompts = PromptRunner(self.network, cache, inputs, assembly.device, captures=captures)
        if assembly.fused is not None:
            dependent = kernels.dependent_launch
            self._fused = FusedDecoding(self.network, cache, inputs, assembly.fused, dependent=dependent)
        self._prompts.prepare(self.vllm_config.scheduler_config.max_num_batched_tokens)

    def _is_eager(self) -> bool:
        return bool(self.vllm_config.model_config.enforce_eager)

    def _layers(self) -> list[KvLayer]:
        return [layer for layer in self.kv_layers if isinstance(layer, KvLayer)]

    def _new_inputs(self, page_size: int) -> StepInputs:
        scheduler, spec = self.vllm_config.scheduler_config, self.assembly.held
        return StepInputs.new(
            self.assembly.device.torch_device,
            num_tokens=max(scheduler.max_num_batched_tokens, 2048),
            num_requests=scheduler.max_num_seqs,
            num_pages=-(-self.vllm_config.model_config.max_model_len // page_size),
            page_size=page_size,
            window=max(size for size in spec.windows if size is not None),
        )

    @torch.inference_mode()
    def _profile(self, input_ids: Tensor) -> Tensor:
        """Runs requests of as many tokens over scratch pages, so that vLLM can measure the memory of a step."""
        tokens, page_size = input_ids.shape[0], self.vllm_config.cache_config.block_size
        device, longest = input_ids.device, min(tokens, self.vllm_config.model_config.max_model_len)
        cache = scratch_cache(self._layers(), longest, page_size, device)
        starts = torch.tensor([*range(0, tokens, longest), tokens], device=device, dtype=torch.int32)
        places = torch.arange(tokens, device=device) % longest
        pages = torch.arange(-(-longest // page_size), device=device, dtype=torch.int32)
        tables = pages.repeat(len(starts) - 1, 1)
        step = VllmStep(
            token_ids=input_ids,
            positions=places,
            query_starts=starts,
            kv_lens=starts.diff(),
            full_slots=places,
            window_slots=places,
            full_table=tables,
            window_table=tables,
            most_queries=longest,
        )
        inputs = self._new_inputs(page_size)
        return PromptRunner(self.network, cache, inputs, self.assembly.device, captures=False).run_ops(step)

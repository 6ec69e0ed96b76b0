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
import vllm
from torch import Tensor, nn
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
    tensor_model_parallel_all_gather,
    tensor_model_parallel_all_reduce,
)
from vllm.forward_context import get_forward_context

from firesteel.errors import UserError
from firesteel.model.weights import named_tensors
from firesteel.types import KvCache
from firesteel.vllm_plugin.assembly import DUMMY, assemble, find_weights, random_weights, read_weights
from firesteel.vllm_plugin.kv import KvLayer, bound_cache, scratch_cache
from firesteel.vllm_plugin.proof_line import ProofLine
from firesteel.vllm_plugin.runtime import Runtime
from firesteel.vllm_plugin.same_plugin import check_mark
from firesteel.vllm_plugin.step import VllmStep, profiling_step
from firesteel.vllm_plugin.step_log import StepLog

_log = logging.getLogger("vllm.firesteel")


class FiresteelGptOss(nn.Module):
    """gpt-oss computed by firesteel's kernels."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        check_mark(vllm_config)
        self.vllm_config = vllm_config
        rank, num_ranks = get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size()
        self.assembly = assemble(vllm_config, rank=rank, num_ranks=num_ranks, add=tensor_model_parallel_all_reduce)
        self.network = self.assembly.model
        self._has_weights = vllm_config.load_config.load_format == DUMMY
        if self._has_weights:
            self.network.weights = random_weights(self.assembly, vllm_config.model_config.seed)
        self.steps = StepLog()
        self.kv_layers = [self._new_layer(number) for number in range(self.assembly.held.num_layers)]
        windows = self.assembly.held.windows
        self._full_name = self.kv_layers[windows.index(None)].layer_name
        self._window_name = next(layer.layer_name for layer in self.kv_layers if layer.window is not None)
        self._bound: Tensor | None = None  # pages of the first layer, for which the runtime was made
        self._runtime: Runtime | None = None
        self._is_compiled = False
        self._captured: dict[int, Tensor] = {}  # logits of decoding steps in vLLM's graphs, by number of requests
        self._logits: Tensor | None = None  # of the last step, if it was not replayed and has computed them
        self._kind = ""
        ledger = self.network.kernels.ledger
        self.proof = ProofLine(
            ledger,
            rank=rank,
            num_ranks=num_ranks,
            vllm_version=vllm.__version__,
            settings={"sinks": "on" if self.network.sinks else "off"},
        )

    def _new_layer(self, number: int) -> KvLayer:
        spec = self.assembly.held
        return KvLayer(
            self.vllm_config,
            f"model.layers.{number}.attn",
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            window=spec.windows[number],
            dtype=self.assembly.kv_dtype,
            steps=self.steps,
        )

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        return self.network.weights.embedding[input_ids].to(self.network.dtype)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Reads the checkpoint with our own reader, in parallel; vLLM's iterator only ensures that it is here.

        Raises the second time: graphs read the weights where they are, and those of the iterator may be others.
        """
        if self._has_weights:
            raise UserError(
                "firesteel: weights cannot be replaced while vLLM runs: start it with the new checkpoint"
            )
        next(iter(weights), None)
        self.network.weights, seconds = read_weights(self.assembly, find_weights(self.vllm_config))
        self._has_weights = True
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
        residual, logits, self._kind = self._find_runtime().run(step)
        self.steps.was_called = True
        if logits is not None and logits.is_cuda and torch.cuda.is_current_stream_capturing():
            self._captured[step.num_requests] = logits
        else:
            self._logits = logits
        return residual

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Returns fp32 logits [.., V] of rows that `forward` returned.

        Steps of few requests have computed them already. vLLM asks for those of a step first, one row per request
        in their order, its last one; any further call is for other rows.
        """
        count, steps = hidden_states.shape[0], self.steps
        ready = self._find_ready(count) if steps.is_open else None
        if steps.close(self._kind):
            self.proof.begin()
        return self._compute_logits(hidden_states) if ready is None else ready

    def _find_ready(self, count: int) -> Tensor | None:
        steps = self.steps
        logits = self._logits if steps.was_called else self._captured.get(steps.num_requests)
        if logits is None or count > logits.shape[0]:
            return None
        return logits[:count] if steps.is_decoding or count == logits.shape[0] else None

    def _compute_logits(self, hidden_states: Tensor) -> Tensor:
        count, fused = hidden_states.shape[0], None if self._runtime is None else self._runtime.fused
        if fused is not None and count > 0 and fused.accepts(count):
            logits = fused.logits(hidden_states)
        else:
            x, _ = self.network.norm(hidden_states, None, self.network.weights.norm)
            logits = self.network.logits(x.plain)
        if self.network.ranks is None:
            return logits
        gathered: Tensor = tensor_model_parallel_all_gather(logits)
        return gathered[..., : self.assembly.held.vocab_size]

    def _find_runtime(self) -> Runtime:
        """Returns the runtime for the pages that vLLM has bound; makes one if the pages changed."""
        first = self.kv_layers[0]
        if self._runtime is None or self._bound is not first.kv_cache:
            self._bound = first.kv_cache
            self._captured.clear()
            self._runtime = self._new_runtime(bound_cache(self.kv_layers))
            self._runtime.capture_prompts()
        return self._runtime

    def _new_runtime(self, cache: KvCache) -> Runtime:
        scheduler, compilation = self.vllm_config.scheduler_config, self.vllm_config.compilation_config
        runtime = Runtime(
            self.assembly,
            cache,
            most_tokens=scheduler.max_num_batched_tokens,
            most_requests=scheduler.max_num_seqs,
            max_context=self.vllm_config.model_config.max_model_len,
        )
        if not self._is_compiled:
            self._is_compiled = True
            runtime.compile(compilation.cudagraph_capture_sizes or ())
        return runtime

    @torch.inference_mode()
    def _profile(self, input_ids: Tensor) -> Tensor:
        """Runs as many tokens over scratch pages, so that vLLM can measure the memory of a step."""
        page_size = self.vllm_config.cache_config.block_size
        longest = min(input_ids.shape[0], self.vllm_config.model_config.max_model_len)
        cache = scratch_cache(self.kv_layers, longest, page_size, input_ids.device)
        step = profiling_step(input_ids, longest, page_size)
        return self._new_runtime(cache).prompts.run_ops(step)

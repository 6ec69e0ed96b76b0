"""Decoding steps of up to eight requests by the fused kernels, over inputs that stay in place.

vLLM captures them into its own CUDA graphs, one per number of requests.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from firesteel.engine.step.step_store import FusedOps
from firesteel.errors import ArgumentsRefused
from firesteel.kernels.decode.lm_head import DecodeLmHeadOperands
from firesteel.model.decode import MOST_REQUESTS, DecodeStep
from firesteel.model.decode_operands import DecodeInputs, find_rounding
from firesteel.model.decode_ops import DecodeError
from firesteel.model.gpt_oss import GptOss
from firesteel.model.step_ints import StepResult
from firesteel.types import KvCache
from firesteel.vllm_plugin.inputs import StepInputs
from firesteel.vllm_plugin.step import VllmStep
from firesteel.vllm_plugin.take_over import load_decoding

_log = logging.getLogger("vllm.firesteel")


class FusedDecoding:
    """The decoding steps of one model over one KV cache."""

    def __init__(
        self, model: GptOss, cache: KvCache, inputs: StepInputs, fused: FusedOps, *, dependent: bool
    ) -> None:
        self.model, self.cache, self.inputs, self.fused = model, cache, inputs, fused
        self.dependent = dependent
        self.refusals: dict[int, str] = {}  # by number of requests: why the fused ops cannot run
        self._steps: dict[int, DecodeStep] = {}
        self._residual = torch.zeros(
            MOST_REQUESTS, model.spec.hidden_size, dtype=model.dtype, device=inputs.token_ids.device
        )

    def accepts(self, num_requests: int) -> bool:
        return num_requests <= MOST_REQUESTS and num_requests not in self.refusals

    def run(self, step: VllmStep) -> tuple[Tensor, Tensor | None] | None:
        """Returns the residual [T, H] of all tokens and, of a whole lm_head, their fp32 logits [T, V].

        Returns None if the fused ops refuse the model or its shapes.
        """
        count = step.num_requests
        load_decoding(self.inputs, step, self.model.weights.embedding, self._residual[:count])
        try:
            residual = self._find(count).run_layers()
            logits = self.logits(residual, dependent=self.dependent) if self.model.ranks is None else None
        except (DecodeError, ArgumentsRefused) as error:
            if self.fused.is_asked:
                raise
            self.refusals[count] = str(error)
            _log.warning("firesteel: decoding steps of %d requests run op by op: %s", count, error)
            return None
        return residual, logits

    def logits(self, residual: Tensor, *, dependent: bool = False) -> Tensor:
        """Returns fp32 logits [T, V] of up to eight rows, with the final norm.

        With `dependent`, the kernel ahead of it is the last one of `run_layers`.
        """
        weights = self.model.weights
        operands = DecodeLmHeadOperands(
            r=residual,
            norm=weights.norm,
            eps=self.model.spec.rms_eps,
            weight=weights.lm_head,
            activation=find_rounding(self.model, weights.lm_head),
            dependent=dependent,
        )
        logits, _ = self.fused.ops.lm_head(operands)
        return logits

    def _find(self, count: int) -> DecodeStep:
        if count not in self._steps:
            batch = self.inputs.batch(count, count)
            inputs = DecodeInputs(
                result=StepResult.new(count, batch.token_ids.device),
                positions=batch.positions,
                kv_lens=batch.kv_lens,
                num_stored=batch.positions,  # each row is a request of its own
                full=batch.full,
                window=batch.window,
                r=self._residual[:count],
            )
            self._steps[count] = DecodeStep(
                self.model,
                self.cache,
                self.fused.ops,
                num_requests=count,
                num_pages=batch.full.page_table.shape[1],
                dependent=self.dependent,
                inputs=inputs,
            )
        return self._steps[count]

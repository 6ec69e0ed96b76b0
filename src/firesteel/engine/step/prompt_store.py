"""Prompt steps ready to be launched, one per padded size, and the choice of a step for a plan.

They are made, and on a GPU captured, at first use or before. Plans that fit no step run op by op and are counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from firesteel.config import KernelConfig
from firesteel.device import DeviceSpec
from firesteel.engine.step.making import PaddedStore
from firesteel.model.gpt_oss import GptOss
from firesteel.model.graphs import StepGraph, StepMemory
from firesteel.model.prompt_sizes import PromptSize, find_size, prompt_sizes
from firesteel.model.prompt_step import PromptStep
from firesteel.types import KvCache, Plan, Span


@dataclass(slots=True, kw_only=True)
class OutsideCounts:
    """Numbers of steps that ran op by op, by reason."""

    off: int = 0  # prompt graphs are off
    tokens: int = 0  # too many tokens
    logits: int = 0  # logits of prompt tokens were wanted


@dataclass(frozen=True, slots=True)
class ReadyPrompt:
    """A prompt step and the function that launches it."""

    step: PromptStep
    launch: Callable[[], Tensor]  # does not wait for a GPU; returns logits [R, V] that the next launch overwrites


class PromptStore(PaddedStore[PromptSize, ReadyPrompt]):
    """The prompt steps of an engine, by padded size."""

    def __init__(
        self,
        model: GptOss,
        cache: KvCache,
        device: DeviceSpec,
        config: KernelConfig,
        memory: StepMemory,
        *,
        most_tokens: int,
        most_requests: int,
        max_context: int,
        eager: bool = False,
    ) -> None:
        """Makes no step yet. `eager` runs padded steps without a capture, also on a CPU, which else has none."""
        super().__init__(memory)
        self.model, self.cache, self.device = model, cache, device
        self.captures = device.is_cuda and config.cuda_graphs and config.prefill_graphs
        self.is_on = self.captures or eager
        self.most_tokens, self.most_requests, self.max_context = most_tokens, most_requests, max_context
        self.outside = OutsideCounts()
        self.num_launched = 0

    def sizes(self) -> list[PromptSize]:
        """Returns the sizes of all steps that plans may run in."""
        return prompt_sizes(self.most_tokens, self.most_requests) if self.is_on else []

    @torch.inference_mode()
    def call_ops(self) -> None:
        """Calls every op as the steps do and keeps no step; used inside `compile_ahead`."""
        for size in self.sizes():
            self._new_step(size).warm_up()

    def find(self, plan: Plan) -> ReadyPrompt | None:
        """Returns the step that `plan` runs in, or None if it runs op by op, which is counted."""
        if not self.is_on:
            self.outside.off += 1
            return None
        if any(map(_wants_prompt_logits, plan.spans)):
            self.outside.logits += 1
            return None
        size = find_size(plan.num_tokens, len(plan.spans), self.most_requests)
        if size is None:
            self.outside.tokens += 1
            return None
        self.num_launched += 1
        return self._get(size)

    def _describe(self, size: PromptSize) -> str:
        return f"a step of {size.tokens} tokens of {size.requests} requests"

    def _make(self, size: PromptSize) -> ReadyPrompt:
        step = self._new_step(size)
        return self._capture(step) if self.captures else ReadyPrompt(step, step.run)

    def _new_step(self, size: PromptSize) -> PromptStep:
        num_pages = -(-self.max_context // self.cache.keys[0].shape[2])
        return PromptStep(
            self.model,
            self.cache,
            size,
            num_pages=num_pages,
            logits=self.memory.logits,
            taps=self.memory.find_taps(size.tokens),
        )

    def _capture(self, step: PromptStep) -> ReadyPrompt:
        ledger, pool = self.model.kernels.ledger, self.memory.pool
        graph = StepGraph(step.run, ledger, self.device, undo=step.rest, warm_up=step.warm_up, pool=pool)
        return ReadyPrompt(step, cast(Callable[[], Tensor], graph.replay))


def _wants_prompt_logits(span: Span) -> bool:
    return span.request.wants_prompt_logits and span.start < span.request.num_prompt

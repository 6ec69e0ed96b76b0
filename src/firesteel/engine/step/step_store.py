"""Decoding steps ready to be launched, one per number of requests and width of page tables.

They are made, and on a GPU captured, at first use or before. One to eight requests run in the fused decode ops if
they support the model, others in the network.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from firesteel.config import KernelConfig
from firesteel.device import DeviceSpec
from firesteel.engine.step.making import MeasuredStore
from firesteel.engine.step.step_sizes import padded_pages, padded_requests, reaches, step_sizes
from firesteel.errors import ArgumentsRefused
from firesteel.kernels.decode.attention_plan import SHORT
from firesteel.model.decode import MOST_REQUESTS, DecodeStep
from firesteel.model.decode_ops import DecodeError, DecodeOps
from firesteel.model.gpt_oss import GptOss
from firesteel.model.graphs import StepGraph, StepMemory
from firesteel.model.network_step import NetworkStep
from firesteel.types import KvCache

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReadyStep:
    """A decoding step and the function that launches it."""

    step: DecodeStep | NetworkStep
    launch: Callable[[], Tensor]  # does not wait for a GPU; returns logits [T, V] that the next launch overwrites
    is_captured: bool

    @property
    def num_tokens(self) -> int:
        """Tokens that each request can hold."""
        return self.step.num_pages * self.step.page_size


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedOps:
    """The fused decode ops. `is_asked`: the user named some of them, so it is an error if they cannot run."""

    ops: DecodeOps
    is_asked: bool = False


class StepStore(MeasuredStore):
    """The decoding steps of an engine, by size."""

    def __init__(
        self,
        model: GptOss,
        cache: KvCache,
        device: DeviceSpec,
        config: KernelConfig,
        *,
        fused: FusedOps | None,
        idle_page: int,
        most_requests: int,
        max_context: int,
        memory: StepMemory | None = None,
    ) -> None:
        """Makes no step yet. `idle_page` is a page that no request owns: trial runs write there.

        `memory` is shared with other steps of the engine; without it the store has its own.
        """
        super().__init__(
            memory or StepMemory(device, most_requests=most_requests, vocab_size=model.spec.vocab_size)
        )
        self.model, self.cache, self.device, self.config = model, cache, device, config
        self.fused = fused
        self.idle_page = idle_page
        self.most_requests, self.max_context = most_requests, max_context
        self._is_trial = False
        self.refusals: dict[int, str] = {}  # by number of requests: why the fused ops cannot run
        self._ready: dict[tuple[int, int], ReadyStep] = {}

    def ready(self) -> list[ReadyStep]:
        """Returns the steps made so far."""
        return list(self._ready.values())

    def sizes(self) -> list[tuple[int, int]]:
        """Returns (requests, tokens that each can hold) of every step that plans may run in.

        The largest comes first, so that the others reuse its memory.
        """
        sizes = []
        for size in reversed(step_sizes(self.most_requests)):
            widths = [SHORT, self.max_context] if self._is_fused(size) else reaches(self.max_context)
            sizes += [(size, min(width, self.max_context)) for width in reversed(widths)]
        return list(dict.fromkeys(sizes))

    @torch.inference_mode()
    def prepare(self, progress: Callable[[], None] = lambda: None) -> None:
        """Makes all steps and calls `progress` after each."""
        for size in self.sizes():
            self.find(*size)
            progress()
        self.is_prepared = True

    @torch.inference_mode()
    def call_ops(self) -> None:
        """Calls every op as the steps do and keeps no step; used inside `compile_ahead`."""
        self._is_trial = True
        try:
            for size in self.sizes():
                self.find(*size)
        finally:
            self._is_trial = False
            self._ready.clear()
            self.seconds, self.num_bytes = 0.0, 0

    def find(self, num_requests: int, num_tokens: int) -> ReadyStep:
        """Returns the step for `num_requests` requests, the longest of which holds `num_tokens`."""
        size = padded_requests(num_requests, self.most_requests)
        if self.fused is not None and self._is_fused(size):
            # Attention is divided differently for short page tables.
            longest = SHORT if num_tokens <= SHORT < self.max_context else self.max_context
            try:
                return self._get(size, -(-longest // self.page_size), self._make_fused)
            except (DecodeError, ArgumentsRefused) as error:
                if self.fused.is_asked:
                    raise
                self.refusals[size] = str(error)
                _log.warning("decoding steps of %d requests run in the network: %s", size, error)
        return self._get(size, padded_pages(num_tokens, self.page_size, self.max_context), self._make_network)

    def _is_fused(self, size: int) -> bool:
        """Returns whether the fused ops compute steps of this size, as far as is known before trying."""
        return self.fused is not None and size <= MOST_REQUESTS and size not in self.refusals

    @property
    def page_size(self) -> int:
        return self.cache.keys[0].shape[2]

    def _get(self, size: int, width: int, make: Callable[[int, int], ReadyStep]) -> ReadyStep:
        if (size, width) not in self._ready:
            ready = make(size, width) if self._is_trial else self._made(lambda: make(size, width))
            self._ready[size, width] = ready
        return self._ready[size, width]

    def _made(self, make: Callable[[], ReadyStep]) -> ReadyStep:
        return self._measured(
            make,
            lambda ready: (
                f"a decoding step of {ready.step.num_requests} requests with up to {ready.num_tokens} tokens each"
            ),
            lambda ready: ready.is_captured,
        )

    def _make_fused(self, size: int, width: int) -> ReadyStep:
        assert self.fused is not None
        step = DecodeStep(
            self.model,
            self.cache,
            self.fused.ops,
            num_requests=size,
            num_pages=width,
            dependent=self.config.dependent_launch,
            taps=self.memory.find_taps(size),
        )
        step.rest(self.idle_page)
        step.run()  # raises if an op does not support the shapes
        return self._capture(step, lambda: step.rest(self.idle_page), step.run)

    def _make_network(self, size: int, width: int) -> ReadyStep:
        step = NetworkStep(
            self.model,
            self.cache,
            num_requests=size,
            num_pages=width,
            idle_page=self.idle_page,
            logits=self.memory.logits,
            taps=self.memory.find_taps(size),
        )
        return self._capture(step, step.rest, step.warm_up)

    def _capture(
        self, step: DecodeStep | NetworkStep, undo: Callable[[], None], warm_up: Callable[[], object]
    ) -> ReadyStep:
        if self._is_trial:
            warm_up()
        if self._is_trial or not (self.device.is_cuda and self.config.cuda_graphs):
            return ReadyStep(step, step.run, is_captured=False)
        graph = StepGraph(
            step.run, self.model.kernels.ledger, self.device, undo=undo, warm_up=warm_up, pool=self.memory.pool
        )
        return ReadyStep(step, cast(Callable[[], Tensor], graph.replay), is_captured=True)

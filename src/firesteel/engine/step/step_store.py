"""Decoding steps ready to be launched, one for each number of requests and width of page tables; knows no request.

They are made, and on a GPU captured, when first needed; the least recently used goes when there are too many.
One to eight requests run in the fused decode ops where there are such for the model, others in the network.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from firesteel.config import KernelConfig
from firesteel.device import DeviceSpec
from firesteel.engine.step.step_sizes import MOST_GRAPHS, padded_pages, padded_requests, step_sizes
from firesteel.errors import ArgumentsRefused
from firesteel.kernels.decode.attention import SHORT
from firesteel.model.decode import MOST_REQUESTS, DecodeError, DecodeStep
from firesteel.model.decode_ops import DecodeOps
from firesteel.model.gpt_oss import GptOss
from firesteel.model.graphs import StepGraph
from firesteel.model.network_step import NetworkStep
from firesteel.types import KvCache

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReadyStep:
    step: DecodeStep | NetworkStep
    launch: Callable[[], Tensor]  # waits for nothing on a GPU; gives logits [T, V] that the next launch overwrites

    is_captured: bool

    @property
    def num_tokens(self) -> int:
        """That a request can hold in it."""
        return self.step.num_pages * self.step.page_size


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedOps:
    """`is_asked`: the user named some of them, so that it is an error where they cannot run."""

    ops: DecodeOps
    is_asked: bool = False


class StepStore:
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
    ) -> None:
        """`idle_page` is the number of a page that nobody owns: trial runs write there."""
        self.model, self.cache, self.device, self.config = model, cache, device, config
        self.fused = fused
        self.idle_page = idle_page
        self.most_requests, self.max_context = most_requests, max_context
        self.seconds = 0.0  # spent on making steps
        self.num_bytes = 0  # of the device, that torch holds since for them
        self.refusals: dict[int, str] = {}  # by number of requests: why the fused ops do not compute them
        self._logits: Tensor | None = None
        self._pool: Any = None
        self._ready: OrderedDict[tuple[int, int], ReadyStep] = OrderedDict()

    def ready(self) -> list[ReadyStep]:
        """Those made so far and kept."""
        return list(self._ready.values())

    @torch.inference_mode()
    def prepare(self, most: int, progress: Callable[[int, int], None] | None = None) -> None:
        """Makes those of 1 to `most` requests, the largest first: its memory then serves the others too."""
        sizes = step_sizes(most, self.most_requests)
        for done, size in enumerate(reversed(sizes), start=1):
            self.find(size, 1)
            if self.fused is not None and size <= MOST_REQUESTS and size not in self.refusals:
                self.find(size, self.max_context)
            if progress is not None:
                progress(done, len(sizes))

    def find(self, num_requests: int, num_tokens: int) -> ReadyStep:
        """For so many requests, the longest of which holds `num_tokens`."""
        size = padded_requests(num_requests, self.most_requests)
        if self.fused is not None and size <= MOST_REQUESTS and size not in self.refusals:
            # Attention has a form of its own for page tables that are not long.
            longest = SHORT if num_tokens <= SHORT < self.max_context else self.max_context
            try:
                return self._get(size, -(-longest // self.page_size), self._make_fused)
            except (DecodeError, ArgumentsRefused) as error:
                if self.fused.is_asked:
                    raise
                self.refusals[size] = str(error)
                _log.warning("decoding steps of %d requests run in the network: %s", size, error)
        return self._get(size, padded_pages(num_tokens, self.page_size, self.max_context), self._make_network)

    @property
    def page_size(self) -> int:
        return self.cache.keys[0].shape[2]

    def _get(self, size: int, width: int, make: Callable[[int, int], ReadyStep]) -> ReadyStep:
        if (size, width) not in self._ready:
            while len(self._ready) >= MOST_GRAPHS:
                self._ready.popitem(last=False)
            self._ready[size, width] = self._measured(lambda: make(size, width))
        self._ready.move_to_end((size, width))
        return self._ready[size, width]

    def _measured(self, make: Callable[[], ReadyStep]) -> ReadyStep:
        start, held = time.perf_counter(), _held_bytes(self.device)
        made = make()
        seconds, taken = time.perf_counter() - start, max(_held_bytes(self.device) - held, 0)
        self.seconds += seconds
        self.num_bytes += taken if made.is_captured else 0
        _log.info(
            "made a decoding step of %d requests with up to %d tokens each: %.2f s, %d MiB",
            made.step.num_requests, made.num_tokens, seconds, taken >> 20,
        )  # fmt: skip
        return made

    def _make_fused(self, size: int, width: int) -> ReadyStep:
        assert self.fused is not None
        step = DecodeStep(
            self.model, self.cache, self.fused.ops, num_requests=size, num_pages=width,
            dependent=self.config.dependent_launch,
        )  # fmt: skip
        step.rest(self.idle_page)
        step.run()  # where an op does not take the shapes it says so
        return self._capture(step, lambda: step.rest(self.idle_page))

    def _make_network(self, size: int, width: int) -> ReadyStep:
        if self._logits is None:
            shape = (padded_requests(self.most_requests, self.most_requests), self.model.spec.vocab_size)
            self._logits = torch.empty(shape, dtype=torch.float32, device=self.device.torch_device)
        step = NetworkStep(
            self.model, self.cache, num_requests=size, num_pages=width, idle_page=self.idle_page,
            logits=self._logits,
        )  # fmt: skip
        return self._capture(step, step.rest)

    def _capture(self, step: DecodeStep | NetworkStep, undo: Callable[[], None]) -> ReadyStep:
        if not (self.device.is_cuda and self.config.cuda_graphs):
            return ReadyStep(step, step.run, is_captured=False)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = StepGraph(step.run, self.model.kernels.ledger, self.device, undo=undo, pool=self._pool)
        return ReadyStep(step, cast(Callable[[], Tensor], graph.replay), is_captured=True)


def _held_bytes(device: DeviceSpec) -> int:
    """By this process alone: others may share the GPU."""
    return torch.cuda.memory_reserved(device.torch_device) if device.is_cuda else 0

"""Continues a fixed set of prompts together, step by step; knows tokens, not text, and no late arrivals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from firesteel.config import BatchConfig
from firesteel.device import DeviceSpec
from firesteel.engine.batch import Span, build_batch, empty_cache
from firesteel.engine.sampler import sample
from firesteel.model.gpt_oss import GptOss
from firesteel.types import KvCache, SamplingParams


@dataclass(slots=True)
class Row:
    """A prompt, what it was continued with, and the pages that hold both."""

    token_ids: list[int]
    params: SamplingParams
    stops: frozenset[int]
    num_prompt: int
    pages: list[int] = field(default_factory=list)
    num_cached: int = 0
    finish_reason: str | None = None

    @property
    def new_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt :]

    def take(self, token: int) -> None:
        self.token_ids.append(token)
        if token in self.stops:
            self.finish_reason = "stop"
        elif len(self.token_ids) - self.num_prompt >= self.params.max_tokens:
            self.finish_reason = "length"


class Lockstep:
    def __init__(self, model: GptOss, device: DeviceSpec, config: BatchConfig) -> None:
        self.model = model
        self.device = device
        self.config = config

    def run(self, sequences: Sequence[Row]) -> Iterator[list[Row]]:
        """Yields the sequences that got a token, after each step; at most max_num_seqs run at a time."""
        waiting = list(sequences)
        while waiting:
            group, waiting = waiting[: self.config.max_num_seqs], waiting[self.config.max_num_seqs :]
            yield from self._run_group(group)

    @torch.inference_mode()
    def logits(self, token_ids: Sequence[int]) -> Tensor:
        """[T, V] fp32: row t follows token t."""
        sequence = Row(list(token_ids), SamplingParams(max_tokens=1), frozenset(), len(token_ids))
        cache = self._allocate([sequence])
        rows = []
        while sequence.num_cached < len(token_ids):
            span = self._next_span(sequence, self.config.max_num_batched_tokens)
            hidden = self._forward([span], cache)
            rows.append(self.model.logits(hidden))
            sequence.num_cached = span.end
        return torch.cat(rows)

    @torch.inference_mode()
    def _run_group(self, group: list[Row]) -> Iterator[list[Row]]:
        cache = self._allocate(group)
        while running := [one for one in group if one.finish_reason is None]:
            ready, spans = self._plan(running)
            hidden = self._forward(spans, cache)
            ends = torch.tensor([len(span.token_ids) for span in spans]).cumsum(0) - 1
            for one, span in zip(ready, spans, strict=True):
                one.num_cached = span.end
            last = [row for row, one in enumerate(ready) if one.num_cached == len(one.token_ids)]
            if last:
                finished = [ready[row] for row in last]
                logits = self.model.logits(hidden[ends[last].to(hidden.device)])
                positions = [len(one.token_ids) for one in finished]
                for one, token in zip(
                    finished, sample(logits, [one.params for one in finished], positions), strict=True
                ):
                    one.take(token)
                yield finished

    def _allocate(self, group: list[Row]) -> KvCache:
        size, taken = self.config.page_size, 0
        for one in group:
            count = -(-(one.num_prompt + one.params.max_tokens) // size)
            one.pages = list(range(taken, taken + count))
            taken += count
        return empty_cache(self.model.spec, taken, size, self.device)

    def _plan(self, running: list[Row]) -> tuple[list[Row], list[Span]]:
        """Prompts first, as many tokens as a step takes; once all are in, everyone decodes together."""
        pending = [one for one in running if len(one.token_ids) - one.num_cached > 1 or one.num_cached == 0]
        if not pending:
            return running, [self._next_span(one, 1) for one in running]
        ready, spans, left = [], [], self.config.max_num_batched_tokens
        for one in pending:
            if left:
                ready.append(one)
                spans.append(self._next_span(one, left))
                left -= len(spans[-1].token_ids)
        return ready, spans

    def _next_span(self, one: Row, most: int) -> Span:
        return Span(one.token_ids[one.num_cached : one.num_cached + most], one.num_cached, one.pages)

    def _forward(self, spans: list[Span], cache: KvCache) -> Tensor:
        batch = build_batch(spans, self.config.page_size, self.device.torch_device)
        return self.model.forward(batch, cache)

"""Decoding steps at a stated depth: page layout, inputs, comparison of two runs, and timing.

Requests start with `context` random keys and values per layer and decode from there. Timing returns to the same
inputs every few steps, so that the depth stays what it is said to be.

Shape letters: T requests, N pages that a request can hold, L layers, V vocabulary.
"""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from firesteel.device import DeviceSpec
from firesteel.model.decode import DecodeStep
from firesteel.model.decode_ops import GROUPS, DecodeOps
from firesteel.types import Batch, KvCache, KvView

PASS_STEPS = 20  # steps timed between two resets: depths are context to context + 19
STALE = 0  # page that no request owns
RunStep = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """Page tables [T, N] in random order.

    Entries of the window table before the first window are stale.
    """

    full: Tensor
    window: Tensor
    count: int  # pages that the cache must have

    @property
    def width(self) -> int:
        return self.full.shape[1]


def lay_out(contexts: Sequence[int], *, room: int, page_size: int, window: int, seed: int) -> Pages:
    """Assigns pages to requests that hold `contexts` tokens and gain up to `room` more.

    The token after those has a slot as well: a step writes the slot of the next one.
    """
    ends = torch.tensor([[(context + room) // page_size + 1] for context in contexts])
    shape = (len(contexts), int(ends.max()))
    numbers = torch.arange(shape[1]).expand(shape)
    begins = torch.tensor([[max(0, context - window + 1) // page_size] for context in contexts])
    masks = (numbers < ends, (numbers < ends) & (numbers >= begins))
    held = sum(int(mask.sum()) for mask in masks)
    drawn = 1 + torch.randperm(held, generator=torch.Generator().manual_seed(seed))
    full, window_table = (torch.full(shape, STALE, dtype=torch.int64) for _ in masks)
    full[masks[0]], window_table[masks[1]] = drawn.split([int(mask.sum()) for mask in masks])
    return Pages(full=full, window=window_table, count=1 + held)


def first_batch(token_ids: Sequence[int], contexts: Sequence[int], pages: Pages, cache: KvCache) -> Batch:
    """Builds the batch of the token that follows those each request holds."""
    positions, page_size = torch.tensor(contexts), cache.keys[0].shape[2]
    device = cache.keys[0].device

    def view(table: Tensor) -> KvView:
        page = table.gather(1, positions[:, None] // page_size)[:, 0]
        return KvView(page_table=table.to(device), slots=(page * page_size + positions % page_size).to(device))

    return Batch(
        token_ids=torch.tensor(token_ids, device=device),
        positions=positions.to(device),
        query_starts=torch.arange(len(contexts) + 1, device=device),
        kv_lens=(positions + 1).to(device),
        full=view(pages.full),
        window=view(pages.window),
        logit_rows=torch.arange(len(contexts), device=device),
    )


def fill_pages(cache: KvCache, *, seed: int) -> None:
    """Fills the cache with normal keys and values, the same for the same seed."""
    generator = torch.Generator(cache.keys[0].device).manual_seed(seed)
    for tensor in {pages.data_ptr(): pages for pages in (*cache.keys, *cache.values)}.values():
        if tensor.element_size() == 1:  # torch has no random fp8
            tensor.copy_(torch.randn(tensor.shape, generator=generator, device=tensor.device))
        else:
            tensor.normal_(generator=generator)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Results of several steps, to be compared bit for bit."""

    tokens: Tensor  # [steps, T]
    logits: Tensor  # [T, V] of the last step
    written: list[Tensor]  # keys, then values, that the steps wrote into the pages of each layer

    def difference(self, other: Trace) -> str | None:
        """Describes the first difference; None if there is none."""
        if not torch.equal(self.tokens, other.tokens):
            step = int((self.tokens != other.tokens).any(1).nonzero()[0])
            return f"tokens from step {step} on: {self.tokens[step].tolist()}, {other.tokens[step].tolist()}"
        for number, (ours, theirs) in enumerate(zip(self.written, other.written, strict=True)):
            if not torch.equal(ours, theirs):
                kind, layer = ("keys", "values")[number % 2], number // 2
                return f"{kind} of layer {layer} in {int((ours != theirs).sum())} places"
        if not torch.equal(self.logits, other.logits):
            return f"logits of the last step in {int((self.logits != other.logits).sum())} places"
        return None


def trace(step: DecodeStep, run: RunStep, num_steps: int) -> Trace:
    """Traces `num_steps` calls of `run`, a variant of `step`, and restores the inputs of `step` afterwards."""
    inputs, tokens, slots = step.inputs, [], []
    begin = inputs.copy()
    for _ in range(num_steps):
        slots.append((inputs.full.slots.clone(), inputs.window.slots.clone()))
        logits = run()
        tokens.append(inputs.token_ids.clone())
    assert isinstance(logits, Tensor)
    full, window = (torch.cat(kind) for kind in zip(*slots, strict=True))
    written = []
    for layer, layer_window in enumerate(step.model.spec.windows):
        for pages in (step.cache.keys[layer], step.cache.values[layer]):
            written.append(_gather(pages, full if layer_window is None else window))
    inputs.restore(begin)
    return Trace(tokens=torch.stack(tokens), logits=logits.clone(), written=written)


def _gather(pages: Tensor, slots: Tensor) -> Tensor:
    """Returns [slots, K, D]; fp8 values as their codes, because torch does not compare fp8."""
    page_size, held = pages.shape[2], pages.view(torch.uint8) if pages.element_size() == 1 else pages
    return held[slots // page_size, :, slots % page_size]


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a decode op, with its result."""

    op: Callable[[Any], Any]
    operands: Any
    result: Any

    def again(self) -> None:
        """Repeats the call."""
        self.op(self.operands)

    def waiting(self) -> Call:
        """Returns the same call without dependent launch: its kernel waits for everything launched before."""
        return replace(self, operands=replace(self.operands, dependent=False))


def watch(step: DecodeStep) -> dict[str, list[Call]]:
    """Runs a step and returns its calls, keyed by timing group."""
    calls: dict[str, list[Call]] = {group: [] for group in GROUPS}

    def watched(group: str) -> Callable[..., Any]:
        op = getattr(step.ops, group)

        def run(operands: Any) -> Any:
            result = op(operands)
            calls[group].append(Call(op, operands, result))
            return result

        return run

    observed = copy.copy(step)  # shares weights, pages and inputs with `step`
    observed.ops = DecodeOps(*map(watched, GROUPS))
    observed.run()
    return calls


def time_steps(run: RunStep, reset: RunStep, device: DeviceSpec, *, steps: int) -> tuple[float, ...]:
    """Returns the milliseconds of each step, from the end of the previous one, after one untimed pass."""
    measure = _time_cuda if device.is_cuda else _time_cpu
    lengths = [min(PASS_STEPS, steps - done) for done in range(0, steps, PASS_STEPS)]
    measure(run, reset, lengths[:1])
    return tuple(measure(run, reset, lengths))


def _time_cpu(run: RunStep, reset: RunStep, lengths: Sequence[int]) -> list[float]:
    samples = []
    for length in lengths:
        reset()
        for _ in range(length):
            start = time.perf_counter()
            run()
            samples.append(1e3 * (time.perf_counter() - start))
    return samples


def _time_cuda(run: RunStep, reset: RunStep, lengths: Sequence[int]) -> list[float]:
    """Queues steps without waiting, as the serving loop does, so that gaps between them count."""
    passes = []
    for length in lengths:
        reset()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(length + 1)]
        events[0].record()
        for event in events[1:]:
            run()
            event.record()
        passes.append(events)
    torch.cuda.synchronize()
    return [before.elapsed_time(after) for events in passes for before, after in itertools.pairwise(events)]

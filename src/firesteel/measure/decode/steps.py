"""Decoding steps at a stated depth: their pages and inputs, what two ways give, experts met, time; knows no engine.

Requests begin with `context` random keys and values in each layer and go on from there. Timing starts every few
steps from the same inputs again, so that the depth stays what it is said to be.

Shape letters: T requests, N pages a request can hold, L layers, E experts, V vocabulary.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from firesteel.device import DeviceSpec
from firesteel.model.decode import DecodeStep
from firesteel.model.decode_ops import GROUPS, DecodeOps
from firesteel.model.spec import ModelSpec
from firesteel.types import Batch, KvCache, KvView

PASS_STEPS = 20  # timed from the same inputs, then again: depths are context to context + 19
STALE = 0  # the page that nobody owns
Run = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """Tables [T, N]; window tables are stale before what the first window reaches. Neighbours lie anywhere."""

    full: Tensor
    window: Tensor
    count: int  # pages that must exist

    @property
    def width(self) -> int:
        return self.full.shape[1]


def lay_out(contexts: Sequence[int], *, room: int, page_size: int, window: int, seed: int) -> Pages:
    """For requests that hold so many tokens each and gain up to `room` more; the next one has its slot as well."""
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
    """The next token of each request, after the tokens it holds."""
    positions, page_size = torch.tensor(contexts), cache.keys[0].shape[2]
    device = cache.keys[0].device

    def view(table: Tensor) -> KvView:
        page = table.gather(1, positions[:, None] // page_size)[:, 0]
        return KvView(page_table=table.to(device), slots=(page * page_size + positions % page_size).to(device))

    return Batch(
        token_ids=torch.tensor(token_ids, device=device), positions=positions.to(device),
        query_starts=torch.arange(len(contexts) + 1, device=device), kv_lens=(positions + 1).to(device),
        full=view(pages.full), window=view(pages.window), logit_rows=torch.arange(len(contexts), device=device),
    )  # fmt: skip


def fill_pages(cache: KvCache, *, seed: int) -> None:
    """Random keys and values of unit deviation, the same for the same seed."""
    generator = torch.Generator(cache.keys[0].device).manual_seed(seed)
    for tensor in {one.data_ptr(): one for one in (*cache.keys, *cache.values)}.values():
        if tensor.element_size() == 1:  # torch draws no fp8
            tensor.copy_(torch.randn(tensor.shape, generator=generator, device=tensor.device))
        else:
            tensor.normal_(generator=generator)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What a number of steps gave, to be compared bit for bit."""

    tokens: Tensor  # [steps, T]
    logits: Tensor  # [T, V] of the last step
    written: list[Tensor]  # keys, then values, of each layer: what the steps put into the pages

    def difference(self, other: Trace) -> str | None:
        """The first, in words, or None."""
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


def trace(step: DecodeStep, run: Run, num_steps: int) -> Trace:
    """Of `run`, which is a way to run `step`, from its present inputs on; they are put back afterwards."""
    inputs, tokens, slots = step.inputs, [], []
    begin = inputs.copy()
    for _ in range(num_steps):
        slots.append((inputs.full.slots.clone(), inputs.window.slots.clone()))
        logits = run()
        tokens.append(inputs.token_ids.clone())
    assert isinstance(logits, Tensor)
    full, window = (torch.cat(one) for one in zip(*slots, strict=True))
    written = []
    for number, kind in enumerate(step.model.spec.windows):
        for pages in (step.cache.keys[number], step.cache.values[number]):
            written.append(_gather(pages, full if kind is None else window))
    inputs.restore(begin)
    return Trace(tokens=torch.stack(tokens), logits=logits.clone(), written=written)


def _gather(pages: Tensor, slots: Tensor) -> Tensor:
    """[slots, K, D]; of fp8 the codes, which torch compares."""
    page_size, held = pages.shape[2], pages.view(torch.uint8) if pages.element_size() == 1 else pages
    return held[slots // page_size, :, slots % page_size]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertCount:
    num_tokens: int
    per_step: float  # distinct ones in a layer, mean over layers and steps
    per_layer: tuple[int, ...]  # distinct ones over all tokens

    @classmethod
    def of(cls, chosen: Tensor, num_steps: int, spec: ModelSpec) -> ExpertCount:
        """From the ids [steps * L, T, A] that the routers chose."""
        met = torch.zeros(chosen.shape[0], spec.num_experts, dtype=torch.bool, device=chosen.device)
        met = met.scatter(1, chosen.flatten(1), True).unflatten(0, (num_steps, spec.num_layers))
        return cls(
            num_tokens=num_steps * chosen.shape[1], per_step=float(met.sum(-1).float().mean()),
            per_layer=tuple(met.any(0).sum(-1).tolist()),
        )  # fmt: skip

    @property
    def total(self) -> int:
        return sum(self.per_layer)

    def as_dict(self) -> dict[str, Any]:
        return {
            "tokens": self.num_tokens, "distinct_a_layer_and_step": self.per_step,
            "distinct_by_layer": list(self.per_layer), "distinct_in_all_layers": self.total,
        }  # fmt: skip


def count_experts(step: DecodeStep, *, num_tokens: int) -> ExpertCount:
    """From the router's logits, at least so many tokens on; inputs are put back."""
    spec, requests, begin = step.model.spec, step.inputs.token_ids.shape[0], step.inputs.copy()
    num_steps = -(-num_tokens // requests)
    logits = [call.result for _ in range(num_steps) for call in watch(step)["router"]]
    step.inputs.restore(begin)
    chosen = torch.stack(logits).topk(spec.num_active, dim=-1).indices  # [steps * L, T, A]
    return ExpertCount.of(chosen, num_steps, spec)


@dataclass(frozen=True, slots=True)
class Call:
    op: Callable[..., Any]
    args: tuple[Any, ...]  # whether the launch is dependent comes last
    result: Any

    def again(self, *, dependent: bool | None = None) -> None:
        """With the launch of before, or with this."""
        self.op(*self.args[:-1], self.args[-1] if dependent is None else dependent)


def watch(step: DecodeStep) -> dict[str, list[Call]]:
    """Runs a step; its calls by group, with tensors that stay theirs."""
    calls: dict[str, list[Call]] = {group: [] for group in GROUPS}
    plain = step.ops

    def watched(group: str) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            op = getattr(plain, group)
            result = op(*args)
            calls[group].append(Call(op, args, result))
            return result

        return run

    step.ops = DecodeOps(*map(watched, GROUPS))
    try:
        step.run()
    finally:
        step.ops = plain
    return calls


def time_steps(run: Run, reset: Run, device: DeviceSpec, *, steps: int) -> tuple[float, ...]:
    """Milliseconds of each step, from the end of the one before; one pass runs untimed first."""
    measure = _time_cuda if device.is_cuda else _time_cpu
    lengths = [min(PASS_STEPS, steps - done) for done in range(0, steps, PASS_STEPS)]
    measure(run, reset, lengths[:1])
    return tuple(measure(run, reset, lengths))


def _time_cpu(run: Run, reset: Run, lengths: Sequence[int]) -> list[float]:
    samples = []
    for length in lengths:
        reset()
        for _ in range(length):
            start = time.perf_counter()
            run()
            samples.append(1e3 * (time.perf_counter() - start))
    return samples


def _time_cuda(run: Run, reset: Run, lengths: Sequence[int]) -> list[float]:
    """Steps are queued without waiting, as a serving loop does: gaps between them count."""
    passes = []
    for length in lengths:
        reset()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(length + 1)]
        marks[0].record()
        for mark in marks[1:]:
            run()
            mark.record()
        passes.append(marks)
    torch.cuda.synchronize()
    return [before.elapsed_time(after) for marks in passes for before, after in itertools.pairwise(marks)]

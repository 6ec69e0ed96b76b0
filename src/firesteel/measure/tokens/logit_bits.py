"""Logits that an engine has drawn from, kept per request and position, and how many of their bits differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from firesteel.engine.engine import Engine
from firesteel.engine.sample.row import SampleRow
from firesteel.engine.sample.sampler import Sampled, Sampler
from firesteel.measure.tokens.agreement import LogitBits

Kept = dict[tuple[str, int], Tensor]  # logits [V] fp32 on the host, by request and position of the token drawn


class RecordingSampler(Sampler):
    """A sampler that keeps the logits it is given: those of requests with logprobs, or that are not greedy."""

    kept: Kept

    def sample(self, logits: Tensor, rows: Sequence[SampleRow], best: Tensor | None = None) -> Sampled:
        for row, own in zip(rows, logits.cpu(), strict=True):
            self.kept[row.name, row.position] = own.clone()
        return super().sample(logits, rows, best)


def record_logits(engine: Engine) -> None:
    """Makes an idle engine keep the logits it draws from."""
    kernels = engine.runner.model.kernels
    sampler = RecordingSampler(
        engine.sampler.vocab_size, engine.device.torch_device, kernels.draw, by_row=kernels.is_invariant
    )
    sampler.kept = {}
    engine.sampler = engine.loop.sampler = sampler


def find_logits(engine: object) -> Kept | None:
    """Returns the logits that the engine has kept so far, or None if it keeps none."""
    sampler = getattr(engine, "sampler", None)
    return sampler.kept if isinstance(sampler, RecordingSampler) else None


def compare_logits(
    expected: Mapping[tuple[str, int], Tensor], actual: Mapping[tuple[str, int], Tensor]
) -> LogitBits:
    """Compares all rows of `expected` bit by bit; one that `actual` lacks differs in every bit."""
    counts = [count_bits(row, actual[key]) if key in actual else 32 * row.numel() for key, row in expected.items()]
    return LogitBits(
        rows=len(counts), rows_differing=sum(count > 0 for count in counts), bits_differing=sum(counts)
    )


def count_bits(first: Tensor, second: Tensor) -> int:
    """Counts the bits in which two fp32 tensors of one shape differ."""
    different = first.view(torch.int32) ^ second.view(torch.int32)
    different = different[different != 0]
    return sum(int(number) for number in ((different[:, None] >> torch.arange(32)) & 1).sum(0))

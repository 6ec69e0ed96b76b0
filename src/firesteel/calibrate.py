"""Chooses scales for FP8 keys and values from the values that a model stores for a text.

A scale is a power of two. Dividing by one is exact, so a value is still rounded once, and on every device alike.
Other numbers would gain nothing: E4M3's error is relative, the same from 2^-6 to 448, and a scale only moves that
range, so that nothing is clipped above it and little falls among the subnormals below. The range spans nearly
fifteen powers of two. MARGIN gives one of them to other texts, whose keys and values may be larger than those seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from firesteel.engine.cache.kv_scales import SMALLEST
from firesteel.errors import UserError
from firesteel.eval import encode_documents
from firesteel.exam import TEXT, read_items
from firesteel.formats.e4m3 import LARGEST
from firesteel.hub import BUILT_IN
from firesteel.llm import LLM
from firesteel.types import KvScales, SamplingParams

MARGIN = 2.0
PIECE_TOKENS = 2048  # tokens per prompt that a text is split into


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The largest absolute key (after RoPE) and value that each layer stored."""

    num_tokens: int
    largest_keys: tuple[float, ...]
    largest_values: tuple[float, ...]

    @property
    def scales(self) -> KvScales:
        return KvScales(
            keys=_choose_scales(self.largest_keys, "key"), values=_choose_scales(self.largest_values, "value")
        )


def _choose_scales(largest: Sequence[float], name: str) -> tuple[float, ...]:
    return tuple(choose_scale(size, f"layer {number}: its largest {name}") for number, size in enumerate(largest))


def choose_scale(largest: float, what: str = "the largest value") -> float:
    """Returns the smallest power of two that brings MARGIN times the largest value into E4M3's range; 1 for 0."""
    if not math.isfinite(largest):
        raise UserError(
            f"{what} is {largest}, and no scale brings that into range: check that the checkpoint is intact"
        )
    if largest == 0:
        return 1.0
    fraction, exponent = math.frexp(largest * MARGIN / LARGEST)
    return max(2.0 ** (exponent if fraction > 0.5 else exponent - 1), SMALLEST)


def calibrate(
    llm: LLM, prompts: Sequence[Sequence[int]], *, progress: Callable[[int, int], None] | None = None
) -> Calibration:
    """Runs the prompts; `progress` is called with the number of finished prompts and the total.

    One token is drawn after each prompt, which raises if values are not finite.
    """
    if llm.settings.config.cache.kv_dtype == "fp8":
        raise UserError("cannot calibrate from keys and values already rounded to fp8: use --kv-dtype auto")
    with watch_writes(llm) as writes:
        llm.generate(prompts, SamplingParams(max_tokens=1), progress=progress)
    keys, values = writes.largest.T.tolist()
    return Calibration(num_tokens=sum(map(len, prompts)), largest_keys=tuple(keys), largest_values=tuple(values))


def read_prompts(llm: LLM, text: Path | None) -> list[list[int]]:
    """Returns the tokens of a text in pieces (default: the text that Kindling's perplexity is measured on)."""
    if text is None:
        if llm.directory != BUILT_IN:
            raise UserError("--text FILE is required: only the built-in model comes with a text")
        return list(encode_documents(llm, read_items(TEXT)))
    try:
        token_ids = llm.tokenizer.encode(text.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read the text {text}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{text} is not UTF-8 text: {error}") from error
    if not token_ids:
        raise UserError(f"{text} is empty: give a text to calibrate from")
    size = min(PIECE_TOKENS, llm.max_context - 1)
    return [token_ids[start : start + size] for start in range(0, len(token_ids), size)]


@contextmanager
def watch_writes(llm: LLM) -> Iterator[Writes]:
    op = llm.kernels.rope_kv_write
    writes = Writes(op, llm.spec.num_layers, llm.device.torch_device)
    llm.kernels.rope_kv_write = writes  # type: ignore[assignment]
    try:
        yield writes
    finally:
        llm.kernels.rope_kv_write = op


class Writes:
    """Replaces rope_kv_write, which the layers call in turn, and keeps the largest values that it stored."""

    def __init__(self, op: Callable[[Any], tuple[Tensor, ...]], num_layers: int, device: torch.device) -> None:
        self.op = op
        self.num_calls = 0
        self.largest = torch.zeros(num_layers, 2, device=device)  # key, value

    def __call__(self, operands: Any) -> tuple[Tensor, ...]:
        results = self.op(operands)
        k_pages, v_pages, slots = operands.k_pages, operands.v_pages, operands.slots
        row = self.largest[self.num_calls % len(self.largest)]
        for column, pages in enumerate((k_pages, v_pages)):
            written = pages[slots // pages.shape[2], :, slots % pages.shape[2]]
            row[column] = row[column].maximum(written.abs().amax().float())
        self.num_calls += 1
        return results

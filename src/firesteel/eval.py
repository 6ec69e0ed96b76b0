"""Evaluates a loaded model on the held-out questions and text that ship with Kindling."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from firesteel.chat.harmony import Harmony, HarmonyError
from firesteel.exam import EXAM, TEXT, ExamItem, read_items
from firesteel.llm import LLM
from firesteel.types import Generation, SamplingParams

Progress = Callable[[int, int], None]  # questions answered, total
CHAT_TOKENS, TEXT_TOKENS = 192, 24  # more than the longest correct continuation needs


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    family: str
    items: int
    right: int

    @property
    def share(self) -> float:
        return self.right / self.items


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalReport:
    scores: list[Score]  # one per family
    perplexity: float
    perplexity_tokens: int
    seconds: float
    settings: dict[str, Any]

    @property
    def overall(self) -> Score:
        return Score(
            family="all",
            items=sum(score.items for score in self.scores),
            right=sum(score.right for score in self.scores),
        )

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "overall": asdict(self.overall)}


def evaluate(llm: LLM, *, limit: int | None = None, progress: Progress | None = None) -> EvalReport:
    """Evaluates the model; `limit` is the number of questions per family, and of texts (None: all)."""
    started = time.perf_counter()
    items = take(read_items(EXAM), limit)
    marks = grade_all(llm, items, progress)
    perplexity, tokens = measure_perplexity(llm, read_items(TEXT)[:limit])
    config = llm.settings.config
    return EvalReport(
        scores=tally(items, marks),
        perplexity=perplexity,
        perplexity_tokens=tokens,
        seconds=time.perf_counter() - started,
        settings={
            "model": str(config.model.model),
            "device": llm.device.name,
            "dtype": str(llm.device.dtype),
            "sinks": config.kernels.sinks,
            "activation": config.kernels.activation,
            "mxfp4_layers": list(llm.spec.mxfp4_layers),
            "kernels": dict(llm.kernels.table()),
            "limit": limit,
            "kv_dtype": config.cache.kv_dtype,
            "kv_scales": config.cache.kv_scales,
            "cuda_graphs": config.kernels.cuda_graphs,
            "run_ahead": config.batch.run_ahead,
            "saturated_values": llm.engine.statistics().saturated_values,
        },
    )


def take(items: Sequence[ExamItem], limit: int | None) -> list[ExamItem]:
    """Returns the first `limit` items of each family."""
    kept: list[ExamItem] = []
    seen: dict[str, int] = {}
    for item in items:
        seen[item.family] = seen.get(item.family, 0) + 1
        if limit is None or seen[item.family] <= limit:
            kept.append(item)
    return kept


def grade_all(llm: LLM, items: Sequence[ExamItem], progress: Progress | None = None) -> list[bool]:
    harmony = Harmony(llm.tokenizer)
    generations = answer_all(llm, items, progress)
    return [grade(harmony, item, generation) for item, generation in zip(items, generations, strict=True)]


def answer_all(llm: LLM, items: Sequence[ExamItem], progress: Progress | None = None) -> list[Generation]:
    """Answers all items, by family and longest prompt first, so that those of similar length run together."""
    harmony = Harmony(llm.tokenizer)
    prompts = [encode_prompt(harmony, llm, item) for item in items]
    order = sorted(range(len(items)), key=lambda number: (items[number].family, -len(prompts[number])))
    limits = [TEXT_TOKENS if items[number].messages is None else CHAT_TOKENS for number in order]
    params = [SamplingParams(max_tokens=limit) for limit in limits]
    generations = llm.generate([prompts[number] for number in order], params, progress=progress)
    in_order = sorted(zip(order, generations, strict=True), key=lambda pair: pair[0])
    return [generation for _, generation in in_order]


def encode_prompt(harmony: Harmony, llm: LLM, item: ExamItem) -> list[int]:
    if item.messages is None:
        return llm.tokenizer.encode(item.text or "")
    return harmony.encode_for_completion(item.messages, keep_reasoning=True)


def grade(harmony: Harmony, item: ExamItem, generation: Generation) -> bool:
    if item.messages is None:
        return generation.text.startswith(item.answer or "")
    if generation.finish_reason != "stop":
        return False
    try:
        last = harmony.decode(generation.token_ids)[-1]
    except (HarmonyError, IndexError):
        return False
    if item.call is None:
        return last.channel == "final" and last.content == item.answer
    if last.recipient != f"functions.{item.call['name']}":
        return False
    try:
        return bool(json.loads(last.content) == item.call["arguments"])
    except ValueError:
        return False


def tally(items: Sequence[ExamItem], marks: Sequence[bool]) -> list[Score]:
    families = dict.fromkeys(item.family for item in items)
    by_family = {
        family: [mark for item, mark in zip(items, marks, strict=True) if item.family == family]
        for family in families
    }
    return [Score(family=name, items=len(marked), right=sum(marked)) for name, marked in by_family.items()]


def measure_perplexity(llm: LLM, documents: Sequence[ExamItem]) -> tuple[float, int]:
    """Returns the perplexity over all tokens but the first of each document, and the number of these tokens."""
    total, count = 0.0, 0
    for token_ids in encode_documents(llm, documents):
        likelihoods = llm.logits(token_ids)[:-1].log_softmax(-1)
        chosen = likelihoods.gather(1, torch.tensor(token_ids[1:])[:, None])
        total -= float(chosen.double().sum())
        count += len(token_ids) - 1
    return math.exp(total / count), count


def encode_documents(llm: LLM, documents: Sequence[ExamItem]) -> Iterator[list[int]]:
    harmony = Harmony(llm.tokenizer)
    for document in documents:
        if document.messages is None:
            yield llm.tokenizer.encode(document.text or "")
        else:
            yield harmony.encode_for_training(document.messages, keep_reasoning=True)

"""Cost of a precision: perplexity, correct answers and changed answers of a model.

An activation format rounds the inputs of layers with MXFP4 weights: those of the experts in a model as shipped, and
those of the dense layers as well if they are in MXFP4.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from firesteel.chat.harmony import Harmony
from firesteel.config import LAYERS
from firesteel.eval import Progress, answer_all, grade, measure_perplexity, tally
from firesteel.exam import ExamItem
from firesteel.llm import LLM
from firesteel.measure.record import Record

SHIPPED = "as shipped"
ALL_MXFP4 = {"mxfp4_layers": ",".join(LAYERS[1:])}  # experts are in any case
# Only references round to MXFP6; they read ids on the host, which a CUDA graph cannot capture.
EMULATED = {"kernels": "linear=reference,moe_matmul=reference", "cuda_graphs": False}
# name -> the settings that make it
PRECISIONS: dict[str, dict[str, Any]] = {
    SHIPPED: {},
    "all MXFP4": ALL_MXFP4,
    "MXFP8 activations": {"activation": "mxfp8"},
    "MXFP4 activations": {"activation": "mxfp4"},
    "FP8 activations in prompts": {"prefill_activation": "fp8"},
    "all MXFP4, MXFP8 activations": {**ALL_MXFP4, "activation": "mxfp8"},
    "all MXFP4, MXFP4 activations": {**ALL_MXFP4, "activation": "mxfp4"},
    "MXFP6 E3M2 activations": {**EMULATED, "activation": "mxfp6_e3m2"},
    "MXFP6 E2M3 activations": {**EMULATED, "activation": "mxfp6_e2m3"},
}
MEASURED = tuple(
    name for name, settings in PRECISIONS.items() if not settings.items() >= EMULATED.items()
)  # by default


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Answers of a model to all questions, which of them are correct, and its perplexity."""

    precision: str
    token_ids: list[list[int]]
    marks: list[bool]
    families: dict[str, int]  # correct answers per family
    perplexity: float
    perplexity_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Quality of one precision, compared with the first one measured."""

    precision: str
    perplexity: float
    perplexity_tokens: int
    perplexity_change: float  # 0.01 means one per cent higher
    items: int
    right: int
    changed: int  # answers that differ from those of the first, token for token
    lost: int  # answers that were correct with the first precision and are wrong now
    gained: int
    families: dict[str, int]  # correct answers per family
    seconds: float

    @property
    def share(self) -> float:
        return self.right / self.items

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "exact_match": self.share}

    def record(self, llm: LLM, limit: int | None) -> Record:
        """Builds the record; `limit` is the number of questions per family, None for all."""
        return Record.now(
            llm.device,
            llm.settings.config,
            name="quality",
            unit="perplexity",
            samples=[self.perplexity],
            warmups=0,
            startup_s=llm.load_report.seconds,
            kernels=llm.kernels.table(),
            parameters={
                "model": llm.directory.name,
                "dtype": str(llm.device.dtype).removeprefix("torch."),
                "limit": limit,
                **self.as_dict(),
            },
        )


def examine(
    llm: LLM, precision: str, items: Sequence[ExamItem], texts: Sequence[ExamItem], progress: Progress | None = None
) -> Answers:
    """Asks all questions and computes the perplexity of `texts`."""
    started, harmony = time.perf_counter(), Harmony(llm.tokenizer)
    generations = answer_all(llm, items, progress)
    marks = [grade(harmony, *answered) for answered in zip(items, generations, strict=True)]
    perplexity, tokens = measure_perplexity(llm, texts)
    return Answers(
        precision=precision,
        token_ids=[generation.token_ids for generation in generations],
        marks=marks,
        families={score.family: score.right for score in tally(items, marks)},
        perplexity=perplexity,
        perplexity_tokens=tokens,
        seconds=time.perf_counter() - started,
    )


def compare(answers: Answers, first: Answers) -> Quality:
    """Compares `answers` with those of the first precision."""
    marks = list(zip(answers.marks, first.marks, strict=True))
    return Quality(
        precision=answers.precision,
        perplexity=answers.perplexity,
        perplexity_tokens=answers.perplexity_tokens,
        perplexity_change=answers.perplexity / first.perplexity - 1,
        items=len(marks),
        right=sum(answers.marks),
        changed=sum(ours != theirs for ours, theirs in zip(answers.token_ids, first.token_ids, strict=True)),
        lost=sum(theirs and not ours for ours, theirs in marks),
        gained=sum(ours and not theirs for ours, theirs in marks),
        families=answers.families,
        seconds=answers.seconds,
    )

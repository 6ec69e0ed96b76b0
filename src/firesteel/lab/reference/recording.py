"""Records a trusted server as a reference for later servers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from firesteel.config import hide_in_text
from firesteel.errors import UserError
from firesteel.lab.client.api import Api
from firesteel.lab.client.wire import RequestFailed
from firesteel.lab.coherence.ask import ask_questions
from firesteel.lab.coherence.judge import Coherence, judge_coherence
from firesteel.lab.reference.recorded import RecordedContinuation, RecordedReference, RecordedText
from firesteel.lab.reference.reference import find_margin, read_prompt_logprobs
from firesteel.lab.reference.texts import CONTINUED, NUM_PROMPTS, PROBE, find_encoder, read_prompts, read_texts
from firesteel.lab.servers.target import Target, are_finite
from firesteel.version import find_version


class NotRecordable(UserError):
    """The server does not return what a reference needs."""


def record_reference(target: Target) -> tuple[RecordedReference, Coherence]:
    """Asks an identified server for all texts and prompts of level 2."""
    answers, _ = ask_questions(target)
    coherence = judge_coherence(answers)
    encoder = find_encoder(target)
    if encoder is None:
        raise NotRecordable(
            f"{target.model} is not a checkpoint on this machine and its server has no /tokenize, so texts cannot "
            "be encoded in its tokens; name its checkpoint by --model"
        )
    texts = read_texts(encoder, None)
    prompts = read_prompts(encoder, NUM_PROMPTS)
    continuations = tuple(record_continuation(target, prompts, number) for number in range(len(prompts)))
    ledger = target.read_ledger()
    reference = RecordedReference(
        model=target.api.model,
        checkpoint=target.model,
        engine_version=find_engine_version(target.api),
        url=hide_in_text(target.api.url),
        time_utc=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        firesteel=find_version(),
        float32=ledger is not None and ledger.is_float32,
        coherence=coherence.verdict.value,
        probe_ids=tuple(encoder.encode(PROBE)),
        prompts_sha256="",
        texts=tuple(record_text(target, texts, number) for number in range(len(texts))),
        continuations=continuations,
    )
    return reference, coherence


def find_engine_version(api: Api) -> str:
    """Returns what /version states, as vLLM and firesteel do; empty if there is no such path."""
    try:
        answer = api.get("/version")
    except RequestFailed:
        return ""
    version = answer.get("version") if isinstance(answer, Mapping) else None
    return version if isinstance(version, str) else ""


def record_text(target: Target, texts: Sequence[Sequence[int]], number: int) -> RecordedText:
    token_ids = texts[number]
    with target.step(f"log-probabilities of text {number + 1} of {len(texts)}"):
        logprobs = read_prompt_logprobs(target.api, token_ids)
    if not are_finite(logprobs):
        raise NotRecordable(f"text {number + 1} has log-probabilities that are NaN or Inf: this server is broken")
    return RecordedText(token_ids=tuple(token_ids), logprobs=tuple(logprobs))


def record_continuation(target: Target, prompts: Sequence[Sequence[int]], number: int) -> RecordedContinuation:
    prompt = prompts[number]
    asked = {"max_tokens": CONTINUED, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    with target.step(f"continuation {number + 1} of {len(prompts)}"):
        choice = target.api.complete(prompt, logprobs=2, **asked)["choices"][0]
    token_ids = choice.get("token_ids")
    if not isinstance(token_ids, list) or len(token_ids) != CONTINUED:
        raise NotRecordable(f"the server returns no token_ids of {CONTINUED} tokens, which a reference needs")
    logprobs = choice.get("logprobs") or {}
    chosen = [value for value in logprobs.get("token_logprobs") or () if isinstance(value, int | float)]
    return RecordedContinuation(
        prompt=tuple(prompt),
        token_ids=tuple(map(int, token_ids)),
        text=choice["text"],
        logprobs=tuple(value for value in chosen if math.isfinite(value)),
        margins=tuple(read_margins(logprobs, len(token_ids))),
    )


def read_margins(logprobs: Mapping[str, Any], count: int) -> list[float | None]:
    """Returns the margin at each token; None where the server does not rank two."""
    ranked = logprobs.get("top_logprobs") or []
    margins = [find_margin(row) for row in ranked[:count]]
    return margins + [None] * (count - len(margins))

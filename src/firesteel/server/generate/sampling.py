"""Sampling parameters from a request's fields and the checkpoint's defaults."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from firesteel.errors import UserError
from firesteel.server.generate.prompt import Words
from firesteel.server.http.body import only_given
from firesteel.server.http.errors import ApiError
from firesteel.server.openai.requests import GenerationRequest
from firesteel.types import SamplingParams
from firesteel.untrusted.json_file import read_object, shorten

SAME_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "ignore_eos",
    "include_stop_str_in_output",
    "cache_prompt",
)


def read_defaults(directory: Path) -> dict[str, Any]:
    """Reads the defaults of generation_config.json; without that file, text is sampled at temperature 1."""
    path = directory / "generation_config.json"
    content = read_object(path, UserError, "download it again") if os.path.lexists(path) else {}
    if content.get("do_sample") is False:
        return {"temperature": 0.0}
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    defaults = {"temperature": 1.0, **{name: content[name] for name in names if content.get(name) is not None}}
    try:
        SamplingParams(**defaults)
    except UserError as error:
        raise UserError(f"{path}: {shorten(error)}; correct or remove it") from error
    return defaults


def sampling_params(
    request: GenerationRequest,
    defaults: Mapping[str, Any],
    *,
    room: int,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
    grammar: str | None = None,
    bad_words: Words = (),
) -> SamplingParams:
    """Builds the parameters. `room` tokens fit after the prompt and bound `max_tokens`; None takes all of them."""
    stop = [request.stop] if isinstance(request.stop, str) else request.stop
    most = room if max_tokens is None else min(max_tokens, room)
    given = only_given(
        **{name: getattr(request, name) for name in SAME_FIELDS},
        stop=None if stop is None else tuple(stop),
        stop_token_ids=None if request.stop_token_ids is None else tuple(request.stop_token_ids),
        allowed_token_ids=None if request.allowed_token_ids is None else tuple(request.allowed_token_ids),
        logit_bias=_bias(request.logit_bias),
        seed=secrets.randbits(63) if request.seed is None else request.seed,
        min_tokens=None if request.min_tokens is None else min(request.min_tokens, most),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        grammar=grammar,
        bad_words=bad_words or None,
    )
    try:
        return SamplingParams(**{**defaults, **given, "max_tokens": most})
    except UserError as error:
        raise ApiError(400, str(error), param=str(error).split(" ", 1)[0]) from None


def _bias(given: Mapping[str, float] | None) -> dict[int, float] | None:
    return None if given is None else {int(token): value for token, value in given.items()}

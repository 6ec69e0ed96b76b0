"""Valid values of the fields of SamplingParams, with the words that errors use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _whole(least: int, most: float = float("inf")) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and least <= value <= most


def _real(least: float, most: float) -> Callable[[Any], bool]:
    return lambda value: type(value) in (int, float) and least <= value <= most


def _optional(is_valid: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or is_valid(value)


def _many(is_valid: Callable[[Any], bool], most: float = float("inf")) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, tuple | list) and len(value) <= most and all(map(is_valid, value))


def _are_tokens(value: Any) -> bool:
    """Checks without a Python call per token: lists may be long, and each choice of a request has its own."""
    return isinstance(value, tuple | list) and (not value or (set(map(type, value)) == {int} and min(value) >= 0))


def _is_bias(value: Any) -> bool:
    is_token, is_weight = _whole(0), _real(-100, 100)
    return isinstance(value, dict) and all(is_token(token) and is_weight(bias) for token, bias in value.items())


def _is_choice(value: Any) -> bool:
    return value is None or (_are_tokens(value) and len(value) > 0)


def _are_words(value: Any) -> bool:
    return isinstance(value, tuple | list) and all(_are_tokens(word) and len(word) > 0 for word in value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


_TINY, _HUGE = 5e-324, 1.7976931348623157e308  # smallest positive and largest float
_PENALTY = (_real(-2, 2), "a number from -2 to 2")
_LOGPROBS = (_optional(_whole(0, 20)), "a whole number from 0 to 20, or None")
# field -> (check, the rule in words); the ranges are those that the OpenAI API and vLLM accept
SAMPLING_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_tokens": (_whole(1), "a whole number, at least 1"),
    "min_tokens": (_whole(0), "a whole number, at least 0"),
    "temperature": (_real(0, _HUGE), "0 (greedy) or a positive number"),
    "top_k": (_whole(-1, 2**31 - 1), "a whole number from 1 to 2^31 - 1, or 0 or -1 for all tokens"),
    "top_p": (_real(_TINY, 1), "a number above 0 and at most 1"),
    "min_p": (_real(0, 1), "a number from 0 to 1"),
    "repetition_penalty": (_real(_TINY, _HUGE), "a positive number"),
    "presence_penalty": _PENALTY,
    "frequency_penalty": _PENALTY,
    "logit_bias": (_is_bias, "a dictionary from token ids to numbers from -100 to 100"),
    "allowed_token_ids": (_is_choice, "a tuple of token ids, at least one, or None for all"),
    "bad_words": (_are_words, "a tuple of tuples of token ids, at least one each"),
    "grammar": (_optional(_is_text), "a text that is not empty, or None"),
    "seed": (_whole(-(2**63), 2**64 - 1), "a whole number of 64 bits"),
    "stop": (_many(_is_text, 16), "a tuple of at most 16 non-empty strings"),
    "stop_token_ids": (_are_tokens, "a tuple of token ids"),
    "logprobs": _LOGPROBS,
    "prompt_logprobs": _LOGPROBS,
}

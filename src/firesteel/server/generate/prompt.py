"""Tokens of a prompt and of an answer as requests ask for them: cut, forbidden, spelled and scored."""

from __future__ import annotations

from collections.abc import Sequence

from firesteel.chat.tokenizer import Tokenizer
from firesteel.errors import RequestError
from firesteel.server.http.errors import ApiError
from firesteel.server.openai.answers import PromptLogprob
from firesteel.server.openai.limits import MAX_BAD_WORD_TOKENS, MAX_PROMPT_LOGPROBS
from firesteel.types import TokenLogprobs

Words = tuple[tuple[int, ...], ...]


def truncate(
    prompt: list[int], wanted: int | None, *, max_context: int, num_new: int | None, keeps_start: bool = False
) -> list[int]:
    """Returns the last `wanted` tokens of a prompt, or the first; -1 leaves room for `num_new` tokens."""
    if wanted is None:
        return prompt
    if wanted == 0 or wanted > max_context:
        raise ApiError(
            400,
            f"truncate_prompt_tokens = {wanted}: must be from 1 to the context of {max_context} tokens, or -1",
            param="truncate_prompt_tokens",
            code="invalid_value",
        )
    count = max(1, max_context - max(num_new or 1, 1)) if wanted == -1 else wanted
    return prompt[:count] if keeps_start else prompt[-count:]


def encode_bad_words(words: Sequence[str], tokenizer: Tokenizer) -> Words:
    """Returns the tokens of each word, at the start of a text and after a space."""
    texts = [text for word in words for text in (word.lstrip(), " " + word.lstrip())]
    encoded = tuple(dict.fromkeys(map(tuple, tokenizer.encode_batch(texts))))
    if (count := sum(map(len, encoded))) > MAX_BAD_WORD_TOKENS:
        raise RequestError(f"the words have {count} tokens; at most {MAX_BAD_WORD_TOKENS} are compared")
    return encoded


def check_prompt_logprobs(num_tokens: int, num_top: int | None) -> None:
    """Refuses more logprobs than an answer may have; `num_tokens` are those of the prompts of all choices."""
    if num_top is None or num_tokens * (num_top + 1) <= MAX_PROMPT_LOGPROBS:
        return
    raise ApiError(
        400,
        f"logprobs of {num_top + 1} tokens at each of {num_tokens} tokens of the prompts of all choices; an answer "
        f"has at most {MAX_PROMPT_LOGPROBS}: ask for fewer, or shorten the prompts",
        param="prompt_logprobs",
        code="too_many_values",
    )


def spell_token(token_id: int, tokenizer: Tokenizer, *, as_id: bool) -> str:
    """Returns the text of a token, or its id as a name that no two tokens share."""
    return f"token_id:{token_id}" if as_id else tokenizer.decode([token_id])


def spell_prompt_logprobs(
    logprobs: Sequence[TokenLogprobs], tokenizer: Tokenizer
) -> list[dict[str, PromptLogprob] | None]:
    """Returns the most likely tokens and the prompt's own by token id, per token; the first one has no logprob."""
    return [None, *(_spell(scored, tokenizer) for scored in logprobs)]


def _spell(scored: TokenLogprobs, tokenizer: Tokenizer) -> dict[str, PromptLogprob]:
    ranks: dict[int, tuple[float, int | None]] = {scored.token_id: (scored.logprob, None)}
    ranks |= {token: (logprob, rank) for rank, (token, logprob) in enumerate(scored.top, start=1)}
    return {
        str(token): PromptLogprob(logprob=logprob, rank=rank, decoded_token=tokenizer.decode([token]))
        for token, (logprob, rank) in ranks.items()
    }

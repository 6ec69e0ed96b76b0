"""Prompts of a given number of tokens for a server whose tokenizer is unknown.

The server reports how many tokens some words are; the tokens per word and those of the chat template follow from
that. Every prompt has newly drawn words, so that none is in a cache.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from firesteel.lab.client.load_client import ChatMessage, LoadClient
from firesteel.lab.client.wire import RequestFailed

# Each is one token in most vocabularies.
TEXT = """
the of and a to in is you that it he was for on are as with his they at be this have from or one had by word
but not what all were we when your can said there use an each which she do how their if will up other about
out many then them these so some her would make like him into time has look two more write go see number no
way could people my than first water been call who oil its now find long down day did get come made may part
"""
WORDS = TEXT.split()
FEW, MANY = 32, 288  # words in the calibrating requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompter:
    tokens_per_word: float
    user_overhead: float  # tokens that the template adds to a single user message
    context_overhead: float  # tokens that it adds to a context before that
    random: random.Random

    def make(self, pp: int, depth: int) -> list[ChatMessage]:
        """Builds prompts as llama-benchy does: the template's tokens count as part of the prompt or context."""
        if not depth:
            return [user(self._words(pp - self.user_overhead))]
        return [system(self._words(depth - self.context_overhead)), user(self._words(pp))]

    def _words(self, tokens: float) -> str:
        return draw(self.random, max(1, round(tokens / self.tokens_per_word)))


async def calibrate(client: LoadClient, seed: int) -> Prompter:
    """Sends three requests with answers of one token; RequestFailed if the server does not count prompt tokens."""
    source = random.Random(seed)
    few, many = draw(source, FEW), draw(source, MANY)
    few_tokens = await _count(client, [user(few)])
    many_tokens = await _count(client, [user(many)])
    context_tokens = await _count(client, [system(many), user(".")])
    per_word = (many_tokens - few_tokens) / (MANY - FEW)
    if per_word <= 0:
        raise RequestFailed(
            "garbage",
            f"{client.url} counts {few_tokens} tokens for {FEW} words and {many_tokens} for {MANY}: "
            "prompts of a given length cannot be made; check its usage.prompt_tokens",
        )
    return Prompter(
        tokens_per_word=per_word,
        user_overhead=few_tokens - FEW * per_word,
        context_overhead=context_tokens - MANY * per_word - 1,
        random=source,
    )


def draw(source: random.Random, count: int) -> str:
    return " ".join(source.choices(WORDS, k=count))


def user(text: str) -> ChatMessage:
    return {"role": "user", "content": text}


def system(text: str) -> ChatMessage:
    return {"role": "system", "content": text}


async def _count(client: LoadClient, messages: Sequence[ChatMessage]) -> int:
    answer = await client.chat(messages, max_tokens=1)
    tokens = (answer.get("usage") or {}).get("prompt_tokens") if isinstance(answer, dict) else None
    if not isinstance(tokens, int):
        words = f"{client.url} does not report usage.prompt_tokens, so prompts of a given length cannot be made"
        raise RequestFailed("garbage", words)
    return tokens

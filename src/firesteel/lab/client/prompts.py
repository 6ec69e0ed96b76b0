"""Texts of a wanted number of tokens for a server whose tokenizer is not known; measures nothing.

The server itself says how many tokens some words are: from that follow the tokens a word and those that the chat
template adds. Words are drawn anew for every prompt, so that no cache knows them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from firesteel.lab.client.load_client import Client, Message
from firesteel.lab.client.wire import RequestFailed

# Each a token of most vocabularies.
TEXT = """
the of and a to in is you that it he was for on are as with his they at be this have from or one had by word
but not what all were we when your can said there use an each which she do how their if will up other about
out many then them these so some her would make like him into time has look two more write go see number no
way could people my than first water been call who oil its now find long down day did get come made may part
"""
WORDS = TEXT.split()
FEW, MANY = 32, 288  # words that the server is asked about


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompter:
    tokens_a_word: float
    user_overhead: float  # tokens that the template adds to a lone user's turn
    context_overhead: float  # the same to a context before it
    random: random.Random

    def make(self, pp: int, depth: int) -> list[Message]:
        """As llama-benchy shapes them: the template's tokens are taken off the prompt, or off the context."""
        if not depth:
            return [user(self._words(pp - self.user_overhead))]
        return [system(self._words(depth - self.context_overhead)), user(self._words(pp))]

    def _words(self, tokens: float) -> str:
        return draw(self.random, max(1, round(tokens / self.tokens_a_word)))


async def calibrate(client: Client, seed: int) -> Prompter:
    """Three questions with answers of one token; RequestFailed where the server does not count its prompts."""
    source = random.Random(seed)
    few, many = draw(source, FEW), draw(source, MANY)
    few_tokens = await _count(client, [user(few)])
    many_tokens = await _count(client, [user(many)])
    context_tokens = await _count(client, [system(many), user(".")])
    a_word = (many_tokens - few_tokens) / (MANY - FEW)
    if a_word <= 0:
        raise RequestFailed(
            "garbage",
            f"{client.url} counts {few_tokens} tokens for {FEW} words and {many_tokens} for {MANY}: "
            "no prompt of a wanted length can be made; check its usage.prompt_tokens",
        )
    return Prompter(
        tokens_a_word=a_word, user_overhead=few_tokens - FEW * a_word,
        context_overhead=context_tokens - MANY * a_word - 1, random=source,
    )  # fmt: skip


def draw(source: random.Random, count: int) -> str:
    return " ".join(source.choices(WORDS, k=count))


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def system(text: str) -> Message:
    return {"role": "system", "content": text}


async def _count(client: Client, messages: Sequence[Message]) -> int:
    answer = await client.chat(messages, max_tokens=1)
    tokens = (answer.get("usage") or {}).get("prompt_tokens") if isinstance(answer, dict) else None
    if not isinstance(tokens, int):
        words = f"{client.url} does not say usage.prompt_tokens, so no prompt of a wanted length is made"
        raise RequestFailed("garbage", words)
    return tokens

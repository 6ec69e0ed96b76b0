"""Held-out texts and prompts in tokens of the model that is served; knows no reference and judges nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from firesteel.chat.harmony import Harmony, Message
from firesteel.chat.tokenizer import Tokenizer
from firesteel.errors import UserError
from firesteel.exam import EXAM, TEXT, ExamItem, read_items
from firesteel.hub import find_checkpoint
from firesteel.lab.client.api import Api
from firesteel.lab.client.wire import RequestFailed
from firesteel.lab.servers.target import Target, is_refusal

LEAST_TOKENS = 2  # the first has no likelihood


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    encode: Callable[[str], list[int]]
    harmony: Harmony | None = None  # where the vocabulary has its marks and they can be placed

    def encode_whole(self, item: ExamItem) -> list[int]:
        if item.messages is None or self.harmony is None:
            return self.encode(plain_text(item))
        return self.harmony.encode_for_training(item.messages, keep_reasoning=True)

    def encode_beginning(self, item: ExamItem) -> list[int]:
        if item.messages is None or self.harmony is None:
            return self.encode(plain_text(item))
        return self.harmony.encode_for_completion(item.messages, keep_reasoning=True)


def plain_text(item: ExamItem) -> str:
    """Of a conversation, what is said in it."""
    messages: Sequence[Message] = item.messages or ()
    return "\n\n".join(one.content for one in messages) or item.text or ""


def find_encoder(target: Target) -> Encoder | None:
    """By the checkpoint where it is on this machine, else by the server itself; None where it does not tell."""
    try:
        tokenizer = Tokenizer.load(find_checkpoint(target.model))
    except UserError:
        return ask_encoder(target)
    return Encoder(encode=tokenizer.encode, harmony=find_harmony(tokenizer))


def find_harmony(tokenizer: Tokenizer) -> Harmony | None:
    try:
        return Harmony(tokenizer)
    except UserError:  # a vocabulary without its marks
        return None


def ask_encoder(target: Target) -> Encoder | None:
    """The server's /tokenize, with the fields of the first family of servers that it understands."""
    with target.step("how it cuts text into tokens"):
        for field in ("prompt", "content"):  # of vLLM, SGLang and firesteel; of llama.cpp
            if asks_by(target.api, field):
                return Encoder(encode=partial(tokenize, target.api, field))
    return None


def asks_by(api: Api, field: str) -> bool:
    """A server that hangs, is gone or breaks is an error; one that has no such path is not."""
    try:
        return bool(tokenize(api, field, "text"))
    except RequestFailed as error:
        if not is_refusal(error):
            raise
        return False


def tokenize(api: Api, field: str, text: str) -> list[int]:
    found = api.post("/tokenize", {"model": api.model, field: text})
    tokens = found.get("tokens") if isinstance(found, dict) else None
    if not isinstance(tokens, list) or not all(type(one) is int for one in tokens):
        raise RequestFailed("garbage", f"/tokenize gave no list of tokens: {str(found)[:100]!r}")
    return tokens


def read_texts(encoder: Encoder, count: int | None) -> list[list[int]]:
    """To be read."""
    texts = [encoder.encode_whole(item) for item in read_items(TEXT)[:count]]
    return [text for text in texts if len(text) >= LEAST_TOKENS]


def read_prompts(encoder: Encoder, count: int) -> list[list[int]]:
    """Beginnings of texts to be continued, spread over the exam's families."""
    items = read_items(EXAM)
    return [encoder.encode_beginning(item) for item in items[:: max(1, len(items) // count)][:count]]

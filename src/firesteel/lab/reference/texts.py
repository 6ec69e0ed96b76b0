"""Held-out texts and prompts, encoded in the tokens of the served model."""

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

CONTINUED = 32  # tokens of a greedy continuation
NUM_PROMPTS = 24
MIN_TOKENS = 2  # the first has no log-probability
PROBE = "Naïve café, 12345 → x_1 = [3.5];\n\tdef f(x): return not x  # Straße"  # vocabularies split it differently


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEncoder:
    encode: Callable[[str], list[int]]
    harmony: Harmony | None = None  # if the vocabulary has its special tokens and the encoder can place them

    def encode_whole(self, item: ExamItem) -> list[int]:
        if item.messages is None or self.harmony is None:
            return self.encode(plain_text(item))
        return self.harmony.encode_for_training(item.messages, keep_reasoning=True)

    def encode_beginning(self, item: ExamItem) -> list[int]:
        if item.messages is None or self.harmony is None:
            return self.encode(plain_text(item))
        return self.harmony.encode_for_completion(item.messages, keep_reasoning=True)


def plain_text(item: ExamItem) -> str:
    """Returns the text, or the contents of a conversation."""
    messages: Sequence[Message] = item.messages or ()
    return "\n\n".join(message.content for message in messages) or item.text or ""


def find_encoder(target: Target) -> TextEncoder | None:
    """Uses the checkpoint if it is on this machine, else the server's /tokenize; None if it has none."""
    try:
        tokenizer = Tokenizer.load(find_checkpoint(target.model))
    except UserError:
        return ask_encoder(target)
    return TextEncoder(encode=tokenizer.encode, harmony=find_harmony(tokenizer))


def find_harmony(tokenizer: Tokenizer) -> Harmony | None:
    try:
        return Harmony(tokenizer)
    except UserError:  # a vocabulary without its special tokens
        return None


def ask_encoder(target: Target) -> TextEncoder | None:
    """Uses the server's /tokenize, with the first field name that it accepts."""
    with target.step("its /tokenize"):
        for field in ("prompt", "content"):  # the first of vLLM, SGLang and firesteel, the second of llama.cpp
            if accepts_field(target.api, field):
                return TextEncoder(encode=partial(tokenize, target.api, field))
    return None


def accepts_field(api: Api, field: str) -> bool:
    """Raises if the server hangs, is gone or breaks; a missing path is not an error."""
    try:
        return bool(tokenize(api, field, "text"))
    except RequestFailed as error:
        if not is_refusal(error):
            raise
        return False


def tokenize(api: Api, field: str, text: str) -> list[int]:
    answer = api.post("/tokenize", {"model": api.model, field: text})
    tokens = answer.get("tokens") if isinstance(answer, dict) else None
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise RequestFailed("garbage", f"/tokenize returned no list of tokens: {str(answer)[:100]!r}")
    return tokens


def read_texts(encoder: TextEncoder, count: int | None) -> list[list[int]]:
    """Returns texts whose perplexity is computed."""
    texts = [encoder.encode_whole(item) for item in read_items(TEXT)[:count]]
    return [text for text in texts if len(text) >= MIN_TOKENS]


def read_prompts(encoder: TextEncoder, count: int) -> list[list[int]]:
    """Returns beginnings of texts to be continued, spread over the subjects of the exam."""
    items = read_items(EXAM)
    return [encoder.encode_beginning(item) for item in items[:: max(1, len(items) // count)][:count]]

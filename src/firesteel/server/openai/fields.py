"""Fields of OpenAI's API and of vLLM that are not read here: accepted values, and why others are refused.

A field that is neither in a request's type nor in these tables is unknown: it is ignored with a line in the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from firesteel.server.openai.requests import ChatRequest, CompletionRequest, GenerationRequest, TokenizeRequest


@dataclass(frozen=True, slots=True)
class UnreadField:
    """A field that changes nothing. Null, and the values that ask for what happens anyway, are accepted."""

    reason: str
    accepted: tuple[Any, ...] = ()
    accepts_all: bool = False

    def accepts(self, value: Any) -> bool:
        # 1 == True in Python, but not in JSON.
        is_bool = isinstance(value, bool)
        is_listed = any(value == listed and is_bool == isinstance(listed, bool) for listed in self.accepted)
        return value is None or self.accepts_all or is_listed

    @property
    def schema(self) -> dict[str, Any]:
        """The values for the OpenAPI document."""
        return {"description": self.reason} | ({} if self.accepts_all else {"enum": [None, *self.accepted]})


EMPTY: tuple[Any, ...] = ([], {})
NO_EFFECT = {
    "add_special_tokens": "the tokenizer has no token that begins a text",
    "spaces_between_special_tokens": "the tokenizer is byte-level and adds no spaces",
    "session_id": "requests are not routed by session",
    "return_mm_kwargs": "the model reads text only, so there are none",
}
HINTS = {  # of OpenAI's service
    "service_tier": "this server has one tier",
    "prompt_cache_key": "prefixes are found by their tokens; cache_salt separates them",
    "prompt_cache_retention": "prefixes are kept as long as there is room",
    "prompt_cache_options": "prefixes are kept as long as there is room",
    "safety_identifier": "users are not tracked",
}
SAMPLING = {
    "use_beam_search": UnreadField("beam search is not implemented: request n choices", (False,)),
    "length_penalty": UnreadField("only beam search has it, which is not implemented", (1, 1.0)),
    "watermarking": UnreadField("texts are not watermarked", (False,)),
    "logprob_token_ids": UnreadField("request logprobs of the most likely tokens instead", EMPTY),
    "thinking_token_budget": UnreadField("reasoning is bounded by reasoning_effort and max_tokens", (-1,)),
    "repetition_detection": UnreadField("repetition_penalty and frequency_penalty reduce repetition", EMPTY),
    "logits_processors": UnreadField("code of clients is not run", EMPTY),
    "priority": UnreadField("requests are served first come, first served", (0,)),
    "stream_interval": UnreadField("tokens are sent as soon as they are there", (1,)),
    "routed_experts_prompt_start": UnreadField("the experts of tokens are not returned", (0,)),
    "return_token_offsets": UnreadField("offsets of the prompt's tokens are not returned", (False,)),
    "guided_json_object": UnreadField('use response_format = {"type": "json_object"}', (False,)),
    "guided_decoding_backend": UnreadField("llguidance enforces all constraints", ("auto", "guidance")),
    "structural_tag": UnreadField("tags are not enforced: use tools, or structured_outputs.grammar", EMPTY),
}
ENGINE = {
    "kv_transfer_params": UnreadField("the KV cache is not transferred between servers", EMPTY),
    "ec_transfer_params": UnreadField("the model has no encoder", EMPTY),
    "vllm_xargs": UnreadField("there are no extensions that would read it", EMPTY),
    "mm_processor_kwargs": UnreadField("the model reads text only", EMPTY),
}
TEMPLATE = {
    "chat_template": UnreadField("prompts are rendered in Harmony, the format of gpt-oss"),
    "documents": UnreadField("Harmony has no documents: put them into a message", EMPTY),
    "media_io_kwargs": UnreadField("the model reads text only", EMPTY),
}
CHAT = {
    "functions": UnreadField("deprecated by OpenAI: use tools", EMPTY),
    "function_call": UnreadField("deprecated by OpenAI: use tool_choice", ("none",)),
    "audio": UnreadField("the model writes text only", EMPTY),
    "modalities": UnreadField("the model writes text only", (["text"], [])),
    "prediction": UnreadField("predicted outputs are not used", EMPTY),
    "web_search_options": UnreadField("the server searches nothing: offer a search as a tool"),
    "moderation": UnreadField("answers are not moderated", EMPTY),
    "verbosity": UnreadField("the model has no such setting: ask for short answers in a message", ("medium",)),
    "skip_special_tokens": UnreadField(
        "an answer is parsed from its special tokens; return_token_ids shows them", (True,)
    ),
    "truncation_side": UnreadField("the end of a conversation cannot be cut off", ("left",)),
}
ALWAYS_ACCEPTED = {name: UnreadField(reason, accepts_all=True) for name, reason in (NO_EFFECT | HINTS).items()}
GENERATION = ALWAYS_ACCEPTED | SAMPLING | ENGINE
UNREAD_FIELDS: Mapping[type[msgspec.Struct], Mapping[str, UnreadField]] = {
    GenerationRequest: GENERATION,
    ChatRequest: GENERATION | TEMPLATE | CHAT,
    CompletionRequest: GENERATION | {"prompt_embeds": UnreadField("prompts are texts or token ids", EMPTY)},
    TokenizeRequest: {
        "add_special_tokens": ALWAYS_ACCEPTED["add_special_tokens"],
        "mm_processor_kwargs": ENGINE["mm_processor_kwargs"],
        **TEMPLATE,
    },
}


@lru_cache
def find_unread(kind: type[msgspec.Struct]) -> Mapping[str, UnreadField]:
    """Returns the unread fields of a type of requests: its own table, or else that of the type it extends."""
    table = next((UNREAD_FIELDS[base] for base in kind.__mro__ if base in UNREAD_FIELDS), {})
    return {name: field for name, field in table.items() if name not in kind.__struct_fields__}

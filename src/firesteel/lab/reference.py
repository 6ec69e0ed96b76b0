"""Who says what is right: the plain-torch model computed here, or another server; judges nobody."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from firesteel.chat.harmony import Harmony
from firesteel.errors import UserError
from firesteel.eval import encode_documents
from firesteel.exam import EXAM, TEXT, read_items
from firesteel.hub import find_checkpoint
from firesteel.lab.api import Api
from firesteel.lab.wire import RequestFailed
from firesteel.llm import LLM
from firesteel.types import SamplingParams

LARGEST_BYTES = 2 << 30  # of a checkpoint that is computed here
CACHE_GIB = 0.25


class Reference(Protocol):
    """What is asked of it is token ids: no text is cut differently on the two sides."""

    @property
    def name(self) -> str: ...

    def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """Of every token but the first, given those before it."""

    def continue_greedily(self, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]: ...

    def margin(self, token_ids: Sequence[int]) -> float | None:
        """Between the two likeliest next tokens, in nats; None where it is not known."""


class LocalReference:
    """The references of all ops, in float32, on this machine's CPU, by the defaults.

    What the environment or a file sets is for the server under test: taken over, it would be compared with itself.
    """

    def __init__(self, model: str, *, sinks: bool = True) -> None:
        self.name = "firesteel's reference on a CPU"
        self.llm = LLM(model, device="cpu", kv_cache_gib=CACHE_GIB, sinks=sinks, environ={})

    def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        rows = self.llm.logits(token_ids)[:-1].log_softmax(-1)
        chosen: list[float] = rows.gather(1, torch.tensor(token_ids[1:])[:, None])[:, 0].tolist()
        return chosen

    def continue_greedily(self, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
        params = SamplingParams(max_tokens=count, ignore_eos=True)
        return [one.token_ids for one in self.llm.generate(prompts, params, progress=False)]

    def margin(self, token_ids: Sequence[int]) -> float | None:
        first, second = self.llm.logits(token_ids)[-1].topk(2).values.tolist()
        return float(first - second)


@dataclass(frozen=True, slots=True)
class RemoteReference:
    """A server that gives likelihoods of prompts and ids of tokens."""

    api: Api
    name: str

    def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        return read_prompt_logprobs(self.api, token_ids)

    def continue_greedily(self, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
        return [continue_greedily(self.api, prompt, count) for prompt in prompts]

    def margin(self, token_ids: Sequence[int]) -> float | None:
        return None


def find_reference(model: str, reference_url: str) -> tuple[Reference | None, str]:
    """The reference, or in words why there is none."""
    if reference_url:
        api = Api.of(reference_url)
        name, _ = api.find_model()
        return RemoteReference(replace(api, model=name), f"{name} at {api.url}"), ""
    try:
        directory = find_checkpoint(model)
    except UserError:
        return None, f"{model} is no checkpoint of this machine; --reference-url names a server to compare with"
    size = checkpoint_bytes(directory)
    if size > LARGEST_BYTES:
        words = f"{model} is too large to compute here ({size / 1e9:.0f} GB)"
        return None, f"{words}; --reference-url names a server to compare with"
    try:
        return LocalReference(model), ""
    except UserError as error:
        return None, f"{model} cannot be computed here: {error}"


def checkpoint_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.safetensors"))


def read_texts(llm: LLM, count: int | None) -> list[list[int]]:
    """Held-out texts as token ids."""
    return list(encode_documents(llm, read_items(TEXT)[:count]))


def read_prompts(llm: LLM, count: int) -> list[list[int]]:
    """Beginnings of texts to be continued, spread over the exam's families."""
    items = read_items(EXAM)
    harmony = Harmony(llm.tokenizer)
    chosen = items[:: max(1, len(items) // count)][:count]
    return [
        llm.tokenizer.encode(item.text or "")
        if item.messages is None
        else harmony.encode_for_completion(item.messages, keep_reasoning=True)
        for item in chosen
    ]


def read_prompt_logprobs(api: Api, token_ids: Sequence[int]) -> list[float]:
    answer = api.complete(token_ids, max_tokens=1, temperature=0, logprobs=1, echo=True)
    found = (answer["choices"][0].get("logprobs") or {}).get("token_logprobs") or []
    if len(found) < len(token_ids):
        raise RequestFailed("garbage", f"{len(found)} likelihoods for a prompt of {len(token_ids)} tokens")
    return [math.nan if value is None else float(value) for value in found[1 : len(token_ids)]]


def continue_greedily(api: Api, token_ids: Sequence[int], count: int, **fields: Any) -> list[int]:
    asked = {"max_tokens": count, "temperature": 0, "ignore_eos": True, "return_token_ids": True, **fields}
    choice = api.complete(token_ids, **asked)["choices"][0]
    if not isinstance(choice.get("token_ids"), list):
        raise RequestFailed("garbage", "the server does not give token_ids, which a comparison by tokens needs")
    return [int(one) for one in choice["token_ids"]]

"""Who says what is right: the plain-torch model computed here, or another server; judges nobody."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from firesteel.config import find_reference_key
from firesteel.errors import UserError
from firesteel.hub import find_checkpoint
from firesteel.lab.client.api import Api
from firesteel.lab.client.wire import RequestFailed
from firesteel.llm import LLM
from firesteel.types import SamplingParams

LARGEST_BYTES = 2 << 30  # of a checkpoint that is computed here
CACHE_GIB = 0.25


class ReferenceFailed(UserError):
    """It did not answer as it should: no fault of the server under test, of which nothing is then known."""


class Reference(Protocol):
    """What is asked of it is token ids: no text is cut differently on the two sides."""

    @property
    def name(self) -> str: ...

    def is_float32(self) -> bool:
        """Whether it is known to compute so."""

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

    def is_float32(self) -> bool:
        return True

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

    @classmethod
    def open(cls, url: str, *, timeout_s: float) -> RemoteReference:
        api = replace(Api.of(url, find_reference_key()), timeout_s=timeout_s)
        with answering(api.url):
            model, _ = api.find_model()
        return cls(replace(api, model=model), f"{model} at {api.url}")

    def is_float32(self) -> bool:
        """Of servers only ours says where it computes."""
        try:
            found = self.api.get("/ledger")
        except RequestFailed:
            return False
        return isinstance(found, dict) and is_float32(found)

    def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        with answering(self.name):
            return read_prompt_logprobs(self.api, token_ids)

    def continue_greedily(self, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
        with answering(self.name):
            return [continue_greedily(self.api, prompt, count) for prompt in prompts]

    def margin(self, token_ids: Sequence[int]) -> float | None:
        """Where the server ranks tokens."""
        with answering(self.name):
            return read_margin(self.api, token_ids)


@contextmanager
def answering(name: str) -> Iterator[None]:
    """What fails inside is the failure of the reference."""
    try:
        yield
    except RequestFailed as error:
        raise ReferenceFailed(f"the reference, {name}, does not answer as it should: {error}") from error


def is_float32(ledger: Mapping[str, Any]) -> bool:
    """Of a firesteel: on a CPU, where nothing is rounded on the way unless the settings ask for it."""
    formats = ledger.get("formats") or {}
    is_plain = formats.get("activation", "bf16") == "bf16" and formats.get("kv", "float32") == "float32"
    return ledger.get("device") == "CPU" and is_plain


def find_reference(model: str, url: str, *, timeout_s: float = 600.0) -> tuple[Reference | None, str]:
    """The reference, or in words why there is none; one at a URL that cannot be asked raises ReferenceFailed."""
    if url:
        return RemoteReference.open(url, timeout_s=timeout_s), ""
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


def read_margin(api: Api, token_ids: Sequence[int]) -> float | None:
    """Between the two likeliest next tokens; None where the server does not rank them.

    Two are asked for and not more: a server names them by their text, and of two with the same text one is lost.
    """
    try:
        answer = api.complete(token_ids, max_tokens=1, temperature=0, logprobs=2)
    except RequestFailed as error:
        if error.status is None or error.status >= 500:
            raise
        return None
    ranked = (answer["choices"][0].get("logprobs") or {}).get("top_logprobs") or []
    first = ranked[0] if ranked and isinstance(ranked[0], dict) else {}
    found = sorted((float(value) for value in first.values() if isinstance(value, int | float)), reverse=True)
    return found[0] - found[1] if len(found) >= 2 and all(map(math.isfinite, found[:2])) else None

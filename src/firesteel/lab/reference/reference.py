"""References for correct answers: the plain-torch model computed locally, or another server."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
from firesteel.lab.path.ledger import parse_ledger
from firesteel.llm import LLM
from firesteel.types import SamplingParams

MAX_BYTES = 2 << 30  # of a checkpoint that is computed locally
CACHE_GIB = 0.25
CURE = "name a server to compare with by --reference-url, or one recorded by lab reference by --reference"


class ReferenceFailed(UserError):
    """The reference did not answer correctly, so the server under test cannot be judged."""


class Reference(Protocol):
    """A source of correct answers; it takes token ids, so that both sides see the same tokens."""

    @property
    def name(self) -> str: ...

    def is_float32(self) -> bool:
        """Returns True if it is known to compute in float32."""

    def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """Returns the log-probability of every token but the first, given the tokens before it."""

    def continue_greedily(self, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]: ...

    def margin(self, token_ids: Sequence[int]) -> float | None:
        """Returns the nats between the two most likely next tokens; None if unknown."""


class LocalReference:
    """The references of all ops, in float32, on this machine's CPU, with default settings.

    The environment and files configure the server under test: used here, it would be compared with itself.
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
        return [completion.token_ids for completion in self.llm.generate(prompts, params, progress=False)]

    def margin(self, token_ids: Sequence[int]) -> float | None:
        first, second = self.llm.logits(token_ids)[-1].topk(2).values.tolist()
        return float(first - second)


@dataclass(frozen=True, slots=True)
class RemoteReference:
    """A server that returns log-probabilities of prompts and token ids."""

    api: Api
    name: str

    @classmethod
    def open(cls, url: str, *, timeout_s: float) -> RemoteReference:
        api = replace(Api.of(url, find_reference_key()), timeout_s=timeout_s)
        with answering(api.url):
            model, _ = api.find_model()
        return cls(replace(api, model=model), f"{model} at {api.url}")

    def is_float32(self) -> bool:
        """Returns True if the server states that it computes in float32, as only a firesteel server does."""
        try:
            ledger = parse_ledger(self.api.get("/ledger"))
        except RequestFailed:
            return False
        return ledger is not None and ledger.is_float32

    def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        with answering(self.name):
            return read_prompt_logprobs(self.api, token_ids)

    def continue_greedily(self, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
        with answering(self.name):
            return [continue_greedily(self.api, prompt, count) for prompt in prompts]

    def margin(self, token_ids: Sequence[int]) -> float | None:
        """Returns None if the server does not rank tokens."""
        with answering(self.name):
            return read_margin(self.api, token_ids)


@contextmanager
def answering(name: str) -> Iterator[None]:
    """Turns failed requests inside the block into failures of the reference."""
    try:
        yield
    except RequestFailed as error:
        raise ReferenceFailed(f"the reference, {name}, does not answer correctly: {error}") from error


def find_reference(model: str, url: str, *, timeout_s: float = 600.0) -> tuple[Reference | None, str]:
    """Returns the reference, or why there is none. A URL that cannot be reached raises ReferenceFailed."""
    if url:
        return RemoteReference.open(url, timeout_s=timeout_s), ""
    try:
        directory = find_checkpoint(model)
    except UserError:
        return None, f"{model} is not a checkpoint on this machine; {CURE}"
    size = checkpoint_bytes(directory)
    if size > MAX_BYTES:
        return None, f"{model} is too large to compute locally ({size / 1e9:.0f} GB); {CURE}"
    try:
        return LocalReference(model), ""
    except UserError as error:
        return None, f"{model} cannot be computed locally: {error}"


def checkpoint_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.safetensors"))


def read_prompt_logprobs(api: Api, token_ids: Sequence[int]) -> list[float]:
    answer = api.complete(token_ids, max_tokens=1, temperature=0, logprobs=1, echo=True)
    logprobs = (answer["choices"][0].get("logprobs") or {}).get("token_logprobs") or []
    if len(logprobs) < len(token_ids):
        words = f"{len(logprobs)} log-probabilities for a prompt of {len(token_ids)} tokens"
        raise RequestFailed("garbage", words)
    return [math.nan if value is None else float(value) for value in logprobs[1 : len(token_ids)]]


def continue_greedily(api: Api, token_ids: Sequence[int], count: int, **fields: Any) -> list[int]:
    asked = {"max_tokens": count, "temperature": 0, "ignore_eos": True, "return_token_ids": True, **fields}
    choice = api.complete(token_ids, **asked)["choices"][0]
    if not isinstance(choice.get("token_ids"), list):
        raise RequestFailed("garbage", "the server does not return token_ids, which a comparison of tokens needs")
    return [int(token_id) for token_id in choice["token_ids"]]


def read_margin(api: Api, token_ids: Sequence[int]) -> float | None:
    """Returns the nats between the two most likely next tokens; None if the server does not rank them.

    Only two are requested: a server keys them by their text, and of two with the same text one is lost.
    """
    try:
        answer = api.complete(token_ids, max_tokens=1, temperature=0, logprobs=2)
    except RequestFailed as error:
        if error.status is None or error.status >= 500:
            raise
        return None
    ranked = (answer["choices"][0].get("logprobs") or {}).get("top_logprobs") or []
    return find_margin(ranked[0]) if ranked else None


def find_margin(ranked: Any) -> float | None:
    """Returns the nats between the two most likely tokens of one position; None if it does not list two."""
    values = ranked.values() if isinstance(ranked, dict) else ()
    likely = sorted((float(value) for value in values if isinstance(value, int | float)), reverse=True)[:2]
    return likely[0] - likely[1] if len(likely) == 2 and all(map(math.isfinite, likely)) else None

"""A server of known speed without a model, to verify a meter; a word is a token.

Every request is served as if alone: its first token comes when its prompt would be read at `pp_tok_s`, each other
token `1 / tg_tok_s` after the previous one. Times follow the clock, so that a late token does not delay the next.
With `prefix_caching`, a context (system message) that was seen before takes no time.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from firesteel.errors import UserError

MODEL = "mock"
TEMPLATE_TOKENS = 8  # of a chat template
SPIN_S = 0.002  # busy-waiting at the end of a wait: sleep alone is late by up to a millisecond


@dataclass(slots=True, kw_only=True)
class Mock:
    pp_tok_s: float = 4000.0
    tg_tok_s: float = 100.0
    tokens_a_chunk: int = 1
    token_ids: bool = True  # sent with each chunk
    prefix_caching: bool = False
    max_context: int = 65536
    model_s: float = 0.0  # delay of the first `slow_models` answers to /v1/models, by which the latency is measured
    slow_models: int = 0
    port: int = 0  # 0: any free port
    seen: set[str] = field(default_factory=set)
    asked: int = 0

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/models", self.models),
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/v1/completions", self.complete, methods=["POST"]),
                Route("/health", self.health),
            ]
        )

    async def models(self, request: Request) -> Response:
        self.asked += 1
        if self.asked <= self.slow_models:
            await asyncio.sleep(self.model_s)
        return JSONResponse({"object": "list", "data": [{"id": MODEL, "max_model_len": self.max_context}]})

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ready"})

    async def chat(self, request: Request) -> Response:
        start = time.perf_counter()
        body = await request.json()
        prompt_tokens, cached = self._count(body["messages"])
        wanted = int(body.get("max_tokens") or 16)
        ready = start + (prompt_tokens - cached) / self.pp_tok_s
        usage = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": wanted,
            "total_tokens": prompt_tokens + wanted,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        if body.get("stream"):
            return StreamingResponse(self._stream(ready, wanted, usage), media_type="text/event-stream")
        await wait_until(ready + (wanted - 1) / self.tg_tok_s)
        message = {"role": "assistant", "content": "Paris " * wanted}
        choice = {"index": 0, "message": message, "finish_reason": "length"}
        return JSONResponse({"object": "chat.completion", "model": MODEL, "choices": [choice], "usage": usage})

    async def complete(self, request: Request) -> Response:
        """Answers at once: only chats are timed."""
        choice = {"index": 0, "text": " Paris", "finish_reason": "length"}
        return JSONResponse({"object": "text_completion", "model": MODEL, "choices": [choice]})

    def _count(self, messages: list[dict[str, Any]]) -> tuple[int, int]:
        """Returns the tokens of a prompt, and how many of them are in the cache."""
        context = next((str(message["content"]) for message in messages if message["role"] == "system"), "")
        is_known = self.prefix_caching and context in self.seen
        self.seen.add(context)
        total = TEMPLATE_TOKENS + sum(len(str(message["content"]).split()) for message in messages)
        return total, len(context.split()) if is_known else 0

    async def _stream(self, ready: float, wanted: int, usage: dict[str, Any]) -> AsyncIterator[bytes]:
        """Yields the first token alone, as from the prompt's step; then chunks, each when its last token is due."""
        for first in (0, *range(1, wanted, self.tokens_a_chunk)):
            number = 1 if first == 0 else min(self.tokens_a_chunk, wanted - first)
            await wait_until(ready + (first + number - 1) / self.tg_tok_s)
            is_last = first + number == wanted
            choice: dict[str, Any] = {
                "index": 0,
                "delta": {"role": "assistant", "content": "word " * number},
                "finish_reason": "length" if is_last else None,
            }
            if self.token_ids:
                choice["token_ids"] = [1] * number
            yield event({"object": "chat.completion.chunk", "model": MODEL, "choices": [choice]})
        yield event({"object": "chat.completion.chunk", "model": MODEL, "choices": [], "usage": usage})
        yield b"data: [DONE]\n\n"


def event(content: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(content)}\n\n".encode()


async def wait_until(moment: float) -> None:
    """`moment` is on the clock of time.perf_counter."""
    if (rest := moment - time.perf_counter() - SPIN_S) > 0:
        await asyncio.sleep(rest)
    while time.perf_counter() < moment:
        await asyncio.sleep(0)


class AnnouncingServer(uvicorn.Server):
    """Prints its address once it listens."""

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        port = self.servers[0].sockets[0].getsockname()[1]
        print(f"http://127.0.0.1:{port}", flush=True)


@contextmanager
def mock_server(**settings: Any) -> Iterator[str]:
    """Yields the address of a mock server in another process."""
    words = [f"{name}={value}" for name, value in settings.items()]
    command = [sys.executable, __file__, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") as child:
        try:
            assert child.stdout is not None
            url = child.stdout.readline().strip()
            if not url:
                raise UserError("the mock server did not start; see its output above")
            yield url
        finally:
            child.terminate()


def parse_settings(words: list[str]) -> dict[str, Any]:
    """Parses name=value; each value has the type of its default."""
    defaults = asdict(Mock())
    known = {declared.name for declared in fields(Mock)} - {"seen", "asked"}
    settings: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in known:
            raise UserError(f"{word}: the settings are {', '.join(sorted(known))}")
        kind = type(defaults[name])
        settings[name] = value == "True" if kind is bool else kind(value)
    return settings


def main() -> None:
    mock = Mock(**parse_settings(sys.argv[1:]))
    AnnouncingServer(uvicorn.Config(mock.app(), host="127.0.0.1", port=mock.port, log_level="warning")).run()


if __name__ == "__main__":
    main()

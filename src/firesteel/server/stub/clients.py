"""Clients that stream from a server, all at once, and count what comes; they know no more of an answer."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from firesteel.errors import UserError

PATH = "/v1/chat/completions"
TOKEN = b'"token_ids":['


@dataclass(slots=True)
class Visit:
    """What one client saw."""

    sent: float  # when the request was sent, and when its last token came
    last: float = 0.0
    num_chunks: int = 0
    num_bytes: int = 0
    tail: bytes = b""


async def visit(url: str, max_tokens: int) -> Visit:
    """One stream of `max_tokens` tokens, read to its end."""
    split, seen = urlsplit(url), Visit(time.perf_counter())
    reader, writer = await asyncio.open_connection(split.hostname, split.port)
    body = json.dumps(
        {
            "messages": [{"role": "user", "content": "hi"}], "stream": True, "ignore_eos": True,
            "max_tokens": max_tokens, "return_token_ids": True,
        }
    ).encode()  # fmt: skip
    head = (f"POST {PATH} HTTP/1.1", f"host: {split.netloc}", "connection: close", "content-type: application/json")
    writer.write("\r\n".join([*head, f"content-length: {len(body)}", "", ""]).encode() + body)
    while data := await reader.read(1 << 16):
        seen.last = time.perf_counter()
        seen.num_chunks += data.count(TOKEN)
        seen.num_bytes += len(data)
        seen.tail = (seen.tail + data)[-64:]
    writer.close()
    if b"[DONE]" not in seen.tail:
        raise UserError(f"a stream ended early: {seen.tail!r}")
    return seen


async def visit_together(url: str, concurrency: int, max_tokens: int) -> Sequence[Visit]:
    return await asyncio.gather(*(visit(url, max_tokens) for _ in range(concurrency)))

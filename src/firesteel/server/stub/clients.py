"""Clients that stream from a server, all at once, and count the chunks and bytes they receive."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from firesteel.errors import UserError

PATH = "/v1/chat/completions"
TOKEN = b'"token_ids":['  # in every chunk with tokens


@dataclass(slots=True)
class ClientStream:
    """Counts and times of what one client received."""

    sent: float  # time at which the request was sent
    last: float = 0.0  # time of the last chunk
    num_chunks: int = 0
    num_bytes: int = 0
    tail: bytes = b""


async def read_stream(url: str, max_tokens: int) -> ClientStream:
    """Requests `max_tokens` tokens and reads the stream to its end. Raises if it ends early."""
    split, stream = urlsplit(url), ClientStream(time.perf_counter())
    reader, writer = await asyncio.open_connection(split.hostname, split.port)
    body = json.dumps(
        {
            "messages": [{"role": "user", "content": "hi"}],
            "stream": True,
            "ignore_eos": True,
            "max_tokens": max_tokens,
            "return_token_ids": True,
        }
    ).encode()
    head = (f"POST {PATH} HTTP/1.1", f"host: {split.netloc}", "connection: close", "content-type: application/json")
    writer.write("\r\n".join([*head, f"content-length: {len(body)}", "", ""]).encode() + body)
    while data := await reader.read(1 << 16):
        stream.last = time.perf_counter()
        stream.num_chunks += data.count(TOKEN)
        stream.num_bytes += len(data)
        stream.tail = (stream.tail + data)[-64:]
    writer.close()
    if b"[DONE]" not in stream.tail:
        raise UserError(f"a stream ended without [DONE]; its last bytes: {stream.tail!r}")
    return stream


async def read_streams(url: str, concurrency: int, max_tokens: int) -> Sequence[ClientStream]:
    return await asyncio.gather(*(read_stream(url, max_tokens) for _ in range(concurrency)))

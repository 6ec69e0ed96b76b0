"""The access log: one line per request, with the id that its answer carries too.

Prompts are written only if `log_prompts` is set.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
import uuid
from collections.abc import MutableMapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from firesteel.chat.tokenizer import Tokenizer
from firesteel.server.generate.choice import Choice
from firesteel.server.http.errors import GONE
from firesteel.server.observe.metrics import Metrics
from firesteel.untrusted.printable import escape_line, escape_lines

log = logging.getLogger("firesteel.server")
# Polled every few seconds: only failures are written.
QUIET_PATHS = ("/health", "/health/live", "/health/ready", "/ledger", "/load", "/metrics", "/ping")
_request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


@dataclass(slots=True)
class LogEntry:
    """The contents of a request's log line."""

    request_id: str
    shows_text: bool
    facts: dict[str, Any] = field(default_factory=dict)

    def note_prompt(self, tokenizer: Tokenizer, token_ids: Sequence[int]) -> None:
        self.facts["prompt_tokens"] = len(token_ids)
        if self.shows_text:
            self.facts["prompt"] = tokenizer.decode(token_ids)

    def note_end(self, choices: Sequence[Choice]) -> None:
        self.facts["output_tokens"] = sum(choice.num_output for choice in choices)
        self.facts["cached_tokens"] = choices[0].num_cached
        self.facts["finish"] = ",".join(choice.finish_reason or "abort" for choice in choices)
        first = choices[0].statistics
        if first is not None:
            self.facts["first_token_ms"] = round(1e3 * first.first_token_s, 1)
            self.facts["token_ms"] = round(1e3 * first.token_s, 2)


def entry_of(scope: Scope) -> LogEntry:
    entry = scope["state"]["entry"]
    assert isinstance(entry, LogEntry)
    return entry


class AccessLog:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, shows_text: bool) -> None:
        self.app = app
        self.metrics = metrics
        self.shows_text = shows_text

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        entry = LogEntry(find_request_id(scope), self.shows_text)
        state: MutableMapping[str, Any] = scope.setdefault("state", {})
        state["entry"] = entry
        token, start, status = _request_id.set(entry.request_id), time.perf_counter(), GONE

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", entry.request_id.encode())]
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        finally:
            self._write(scope, state.get("status", status), time.perf_counter() - start, entry)
            _request_id.reset(token)

    def _write(self, scope: Scope, status: int, seconds: float, entry: LogEntry) -> None:
        path = getattr(scope.get("route"), "path", "other")
        self.metrics.count_answer(path, status)
        facts = {"method": scope["method"], "path": scope["path"][:200], "status": status}
        facts |= {"seconds": round(seconds, 4), **entry.facts}
        if (error := scope["state"].get("error")) is not None:
            facts["error"] = error
        level = logging.ERROR if status >= 500 else logging.WARNING if status >= 400 else logging.INFO
        if level > logging.INFO or path not in QUIET_PATHS:
            log.log(level, "request", extra=facts)


def find_request_id(scope: Scope) -> str:
    """Returns the client's own id if it is a plain word, else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and re.fullmatch(rb"[\w.:-]{1,128}", value):
            return str(value, "ascii")
    return uuid.uuid4().hex


class LineFormatter(logging.Formatter):
    """Writes a record and its extra fields as one line: name=value pairs, or JSON."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__(datefmt="%Y-%m-%dT%H:%M:%SZ")
        self.converter = time.gmtime
        self.as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        facts = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if (request_id := _request_id.get()) is not None:
            facts = {"request_id": request_id, **facts}
        trace = f"\n{escape_lines(self.formatException(record.exc_info))}" if record.exc_info else ""
        when, what = self.formatTime(record, self.datefmt), record.getMessage()
        if self.as_json:
            whole = {"time": when, "level": record.levelname.lower(), "event": what, **facts}
            whole |= {"trace": trace[1:]} if trace else {}
            return escape_line(json.dumps(whole, ensure_ascii=False, default=str))
        words = " ".join(f"{name}={_word(value)}" for name, value in facts.items())
        return escape_line(f"{when} {record.levelname.lower():7} {what} {words}") + trace


def _word(value: object) -> str:
    text = str(value)
    return text if re.fullmatch(r"[^\s\"=]+", text) else json.dumps(text, ensure_ascii=False)


def set_up_logs(*, as_json: bool) -> None:
    """Logs to stderr; of uvicorn only warnings and errors."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(as_json=as_json))
    for name, level in (("firesteel", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)

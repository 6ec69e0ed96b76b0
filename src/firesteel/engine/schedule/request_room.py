"""Requests that could not run even alone with an empty cache."""

from __future__ import annotations

from firesteel.engine.cache.page_tables import PageTables
from firesteel.errors import RequestError
from firesteel.types import Request


def check_room(request: Request, tables: PageTables, max_context: int) -> None:
    """Raises unless context and cache have room for the request's tokens."""
    name, prompt, new = request.request_id, request.num_prompt, request.max_new
    if not prompt:
        raise RequestError(f"request {name}: the prompt is empty: at least one token is needed")
    if prompt + new > max_context:
        raise RequestError(
            f"request {name}: {prompt} prompt tokens and {new} to come exceed the context of {max_context}: "
            "shorten the prompt or lower max_tokens"
        )
    held = tables.pool.num_pages
    pages = tables.layout.count_pages(prompt + max(new - 1, 0))  # the last token is drawn, not computed
    if pages > held:
        raise RequestError(
            f"request {name}: {prompt} prompt tokens and {new} to come need {pages} pages of the cache, which has "
            f"{held}: shorten it, lower max_tokens or raise --kv-cache-gib"
        )

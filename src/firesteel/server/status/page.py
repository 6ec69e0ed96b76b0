"""The web page at /: one file that shows the server's state and chats with the model."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

PAGE = Path(__file__).with_name("page.html")


async def show_page(request: HttpRequest) -> Response:
    text, policy = read_page()
    headers = {
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }
    return Response(text, headers=headers, media_type="text/html")


@cache
def read_page() -> tuple[str, str]:
    """Returns the page and its content security policy: its own script, requests to this server, nothing else."""
    text = PAGE.read_text(encoding="utf-8")
    scripts, styles = (" ".join(_hashes(text, tag)) for tag in ("script", "style"))
    policy = (
        f"default-src 'none'; script-src {scripts}; style-src {styles}; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text, policy


def _hashes(text: str, tag: str) -> list[str]:
    """Returns the hashes of the texts of all elements `tag`, as a content security policy names them."""
    bodies = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(body.encode()).digest()).decode() for body in bodies]
    return [f"'sha256-{digest}'" for digest in digests]

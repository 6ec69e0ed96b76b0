"""The web page at /: shows the server's state and chats with the model. The files of `web` are sent as one."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

FOLDER = Path(__file__).with_name("web")


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
    """Returns the page and its content security policy: its own scripts, requests to this server, nothing else.

    Trusted types forbid scripts to turn text into markup.
    """
    text = _embed((FOLDER / "page.html").read_text(encoding="utf-8"))
    scripts, styles = (" ".join(_hashes(text, tag)) for tag in ("script", "style"))
    policy = (
        f"default-src 'none'; script-src {scripts}; style-src {styles}; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    return text, policy


def _embed(text: str) -> str:
    """Puts the style sheets and scripts that a page names into it."""
    text = re.sub(
        r'<link rel="stylesheet" href="(\w+\.css)">', lambda match: f"<style>\n{_read(match[1])}</style>", text
    )
    return re.sub(r'<script src="(\w+\.js)"></script>', lambda match: f"<script>\n{_read(match[1])}</script>", text)


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _hashes(text: str, tag: str) -> list[str]:
    """Returns the hashes of the texts of all elements `tag`, as a content security policy names them."""
    bodies = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(body.encode()).digest()).decode() for body in bodies]
    return [f"'sha256-{digest}'" for digest in digests]

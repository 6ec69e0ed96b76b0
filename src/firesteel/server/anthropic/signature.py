"""The signature of thinking blocks.

Clients send it back and drop blocks without one. Nothing is signed here: the text of a block is taken as it comes.
A block whose text is not shown (`display: omitted`) carries it in its signature, so that the next turn knows it.
"""

from __future__ import annotations

import base64
import binascii

SHOWN = "firesteel"
_CARRIES = "firesteel.text."


def sign(text: str, *, is_shown: bool) -> str:
    return SHOWN if is_shown else _CARRIES + base64.b64encode(text.encode()).decode()


def read_signature(signature: str) -> str:
    """Returns the text that a signature carries; empty if it carries none. Raises ValueError for damaged ones."""
    if not signature.startswith(_CARRIES):
        return ""
    try:
        return base64.b64decode(signature.removeprefix(_CARRIES), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error

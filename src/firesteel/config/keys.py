"""API keys, as settings give them: in a text with one key per line, and in a file of the same form."""

from __future__ import annotations

from pathlib import Path

from firesteel.errors import UserError


def split_keys(text: str) -> tuple[str, ...]:
    """Returns the keys of a text, one per line, each once. A header cannot hold a line break, so a key has none."""
    return tuple(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))


def key_list(value: str) -> str | None:
    return "must hold a key, or be empty" if value and not split_keys(value) else None


def list_keys(text: str, file: str) -> tuple[str, ...]:
    """Returns the keys of a text and of a file; a file without a key is an error, as it would open the server."""
    if not file:
        return split_keys(text)
    try:
        in_file = split_keys(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"--api-key-file {file}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"--api-key-file {file}: not UTF-8 text; write one key per line") from error
    if not in_file:
        raise UserError(f"--api-key-file {file}: no key in it; write one key per line")
    return tuple(dict.fromkeys((*split_keys(text), *in_file)))

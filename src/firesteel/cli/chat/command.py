"""The verb `chat`: a conversation on the terminal, with a server or with a model loaded in this process."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from firesteel.cli.app import app, with_settings
from firesteel.cli.chat.partner import AnswerOptions, Partner
from firesteel.cli.options import check_model
from firesteel.config import list_keys, resolve
from firesteel.errors import UserError


@app.command()
@with_settings
def chat(
    settings: dict[str, Any],
    url: Annotated[str, typer.Option(help="OpenAI-compatible server (default: load the model here)")] = "",
    api_key: Annotated[str, typer.Option(help="API key of that server (default: FIRESTEEL_API_KEY)")] = "",
    system: Annotated[str, typer.Option(help="instructions for the whole conversation")] = "",
    effort: Annotated[str, typer.Option(help="reasoning effort: low, medium, high")] = "",
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="maximum tokens per answer, reasoning included")
    ] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="sampling temperature; 0: greedy")] = None,
) -> None:
    """Chat with a model. In a pipe every line is a turn; answers go to stdout, the rest to stderr."""
    if not url:
        check_model(settings)
    from firesteel.cli.chat.conversation import Conversation, check_effort

    options = AnswerOptions(
        effort=check_effort(effort) if effort else None, max_tokens=max_tokens, temperature=temperature
    )
    partner = find_partner(url, api_key, settings)
    Conversation(partner, system=system, options=options).run(is_interactive=sys.stdin.isatty())


def find_partner(url: str, api_key: str, settings: dict[str, Any]) -> Partner:
    """Returns the server at the URL, or a model loaded here; each refuses the other's flags."""
    if url:
        from firesteel.cli.chat.remote import RemotePartner

        refuse(
            settings.keys() - {"model"}, "only for a model loaded here; the server at --url has its own settings"
        )
        server = resolve().config.server
        api_key = api_key or next(iter(list_keys(server.api_key, server.api_key_file)), "")
        return RemotePartner(url, api_key=api_key, model=settings.get("model", ""))
    refuse(["api_key"] if api_key else [], "only for a server: give --url too")
    from firesteel.cli.chat.local import LocalPartner
    from firesteel.cli.model.load import load

    return LocalPartner(load(settings))


def refuse(names: Iterable[str], why: str) -> None:
    flags = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(names))
    if flags:
        raise UserError(f"{flags}: {why}")

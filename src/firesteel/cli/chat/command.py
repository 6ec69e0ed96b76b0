"""The verb `chat`: a conversation on the terminal, with a server or with a model loaded in this process."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Annotated, Any

import typer

from firesteel.chat.harmony import EFFORTS
from firesteel.cli.app import app, show_error, with_settings
from firesteel.cli.chat.local import LocalPartner
from firesteel.cli.chat.partner import AnswerOptions, Partner, Turn
from firesteel.cli.chat.remote import RemotePartner
from firesteel.cli.chat.screen import Screen, ShownAnswer
from firesteel.cli.model.load import load
from firesteel.config import list_keys, resolve
from firesteel.errors import UserError

HELP = """/help            list of commands
/reset           forget the conversation
/effort LEVEL    reasoning effort: low, medium, high
/system TEXT     new instructions, in a new conversation
/quit            leave (also Ctrl-D); Ctrl-C stops an answer"""


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
    options = AnswerOptions(
        effort=check_effort(effort) if effort else None, max_tokens=max_tokens, temperature=temperature
    )
    partner = find_partner(url, api_key, settings)
    Conversation(partner, system=system, options=options).run(is_interactive=sys.stdin.isatty())


def find_partner(url: str, api_key: str, settings: dict[str, Any]) -> Partner:
    """Returns the server at the URL, or a model loaded here; each refuses the other's flags."""
    if url:
        refuse(
            settings.keys() - {"model"}, "only for a model loaded here; the server at --url has its own settings"
        )
        server = resolve().config.server
        api_key = api_key or next(iter(list_keys(server.api_key, server.api_key_file)), "")
        return RemotePartner(url, api_key=api_key, model=settings.get("model", ""))
    refuse(["api_key"] if api_key else [], "only for a server: give --url too")
    return LocalPartner(load(settings))


def refuse(names: Iterable[str], why: str) -> None:
    flags = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(names))
    if flags:
        raise UserError(f"{flags}: {why}")


def check_effort(level: str) -> str:
    if level not in EFFORTS:
        raise UserError(f"unknown effort {level!r}: must be one of {', '.join(EFFORTS)}")
    return level


class Conversation:
    def __init__(self, partner: Partner, *, system: str = "", options: AnswerOptions | None = None) -> None:
        self.partner = partner
        self.system = system
        self.options = options or AnswerOptions()
        self.turns: list[Turn] = []
        self._screen = Screen()

    def run(self, *, is_interactive: bool) -> None:
        """Runs until the end of the input. An error ends one answer on a terminal, and everything in a pipe."""
        if is_interactive:
            self._screen.note(f"{self.partner.name}; /help lists commands")
        for line in read_lines(is_interactive):
            if line == "/quit":
                return
            try:
                self.command(line) if line.startswith("/") else self.say(line)
            except UserError as error:
                if not is_interactive:
                    raise
                show_error(error)

    def say(self, text: str) -> None:
        """Sends one turn and shows its answer. A turn without an answer is dropped."""
        self.turns.append({"role": "user", "content": text})
        answer = ShownAnswer()
        try:
            self._listen(answer)
        finally:
            self._screen.end()
            if answer.content:
                self.turns.append({"role": "assistant", "content": answer.content})
            else:
                self.turns.pop()
        self._screen.note(f"[{answer.in_words()}]")

    def _listen(self, answer: ShownAnswer) -> None:
        opening: list[Turn] = [{"role": "system", "content": self.system}] if self.system else []
        try:
            with closing(self.partner.answer([*opening, *self.turns], self.options)) as pieces:
                for piece in pieces:
                    answer.push(piece)
                    self._screen.show(piece)
        except KeyboardInterrupt:
            answer.finish_reason = "stopped"

    def command(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        rest = rest.strip()
        if name == "/help":
            self._screen.note(HELP)
        elif name == "/reset":
            self.turns.clear()
            self._screen.note("new conversation")
        elif name == "/effort":
            self.options = replace(self.options, effort=check_effort(rest))
            self._screen.note(f"effort {rest}")
        elif name == "/system":
            self.system = rest
            self.turns.clear()
            self._screen.note("new conversation")
        else:
            raise UserError(f"unknown command {name}: /help lists the commands")


def read_lines(is_interactive: bool) -> Iterator[str]:
    """Yields non-empty lines as they are typed or piped."""
    if is_interactive and importlib.util.find_spec("readline"):
        importlib.import_module("readline")  # gives input() line editing and history
    prompt = "> " if is_interactive and sys.stdout.isatty() else ""
    while True:
        try:
            line = input(prompt).strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            if not is_interactive:
                raise
            print(file=sys.stderr)
            continue
        if line:
            yield line

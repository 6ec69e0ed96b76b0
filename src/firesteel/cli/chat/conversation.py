"""A conversation on the terminal: its turns, its commands, and the lines that are typed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

from firesteel.chat.harmony import EFFORTS
from firesteel.cli.app import show_error
from firesteel.cli.chat.partner import AnswerOptions, Partner, Turn
from firesteel.cli.chat.screen import Screen, ShownAnswer
from firesteel.errors import UserError

HELP = """/help            list of commands
/reset           forget the conversation
/effort LEVEL    reasoning effort: low, medium, high
/system TEXT     new instructions, in a new conversation
/quit            leave (also Ctrl-D); Ctrl-C stops an answer"""


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

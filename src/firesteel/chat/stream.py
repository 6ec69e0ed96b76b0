"""Parses the tokens of a model's turn into deltas; accepts any tokens, valid Harmony or not.

    stream = HarmonyStream(harmony)
    for token in tokens:
        for delta in stream.push(token): ...
    for delta in stream.finish(): ...

It never raises and loses nothing: the headers and texts of the parts, joined in order, are the text of all tokens
except the structural ones. A valid stream gives the same as `Harmony.decode`. In an invalid one

- a header without `<|message|>` ends after its known words, and what follows is text;
- text in place of a header is held back until it has four words or a structural token decides what it is; words
  that cannot belong to a header are text, unless between `<|start|>` or `<|channel|>` and `<|message|>`;
- `<|start|>` and `<|channel|>` inside a text end it and begin a header;
- structural tokens without a meaning at their place are ignored.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

from firesteel.chat.format import Message
from firesteel.chat.harmony import Harmony
from firesteel.chat.header import HeaderDraft
from firesteel.chat.message import Begin, Delta, End, Kind, ParsedMessage, TextDelta

NOT_TOOLS = ("all", "assistant", "user")  # recipients that are not tools


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


class HarmonyStream:
    """Parser of one turn. `message` is the sum of the deltas so far."""

    def __init__(
        self, harmony: Harmony, *, role: str | None = "assistant", call_id: Callable[[], str] = new_call_id
    ) -> None:
        """Starts the turn; with a `role`, inside the header of that role's message, as completions do."""
        self.message = ParsedMessage()
        self._call_id = call_id
        self._text = harmony.tokenizer.stream()
        self._draft: HeaderDraft | None = HeaderDraft(role)  # header being written; None inside a text
        self._is_open = False  # whether the last part may get more text
        self._deltas: list[Delta] = []
        self._spell = harmony.tokenizer.decode
        marks = harmony.marks
        self._actions: dict[int, Callable[[int], None]] = {
            marks.start: self._start,
            marks.channel: self._channel,
            marks.constrain: self._constrain,
            marks.message: self._message,
            marks.end: self._end,
            marks.return_: self._end,
            marks.call: self._end,
            marks.endoftext: self._end,
        }

    def push(self, token_id: int) -> list[Delta]:
        """Returns the deltas that this token adds, often none."""
        action = self._actions.get(token_id)
        if action is None:
            self._write(self._text.push(token_id))
        else:
            self._write(self._text.flush())
            action(token_id)
        return self._take()

    def finish(self) -> list[Delta]:
        """Ends the turn and returns the deltas that were held back."""
        self._write(self._text.flush())
        self._leave(None, is_cut=True)
        return self._take()

    def _take(self) -> list[Delta]:
        taken, self._deltas = self._deltas, []
        return taken

    def _emit(self, delta: Delta) -> None:
        self.message.add(delta)
        self._deltas.append(delta)

    def _write(self, text: str) -> None:
        if not text:
            return
        if self._draft is None:
            self._emit(TextDelta(index=len(self.message.parts) - 1, text=text))
            return
        self._draft.write(text)
        if self._draft.is_impossible:
            draft, self._draft = self._draft, None
            self._give_up(draft)

    def _start(self, mark: int) -> None:
        self._leave(None)
        self._draft = HeaderDraft(None)

    def _channel(self, mark: int) -> None:
        if self._draft is None or not self._draft.can_open("channel"):
            self._leave(None)
            self._draft = HeaderDraft()
        self._draft.open("channel")

    def _constrain(self, mark: int) -> None:
        if self._draft is None:
            return
        if not self._draft.can_open("constrain"):
            self._leave(None)
            self._draft = HeaderDraft()
        self._draft.open("constrain")

    def _message(self, mark: int) -> None:
        if self._draft is None:
            return
        if not self._draft.can_close():
            self._leave(None)
        draft, self._draft = self._draft or HeaderDraft(), None
        self._begin(draft.read(), draft.text)

    def _end(self, mark: int) -> None:
        self._leave(mark)
        self._draft = HeaderDraft()

    def _leave(self, mark: int | None, *, is_cut: bool = False) -> None:
        """Ends the current header or text."""
        draft, self._draft = self._draft, None
        if draft is not None and draft.text:
            self._give_up(draft, is_cut=is_cut)
        self._close(mark)

    def _give_up(self, draft: HeaderDraft, *, is_cut: bool = False) -> None:
        """Ends a header without `<|message|>`: its known words are the header, the rest is text."""
        header, rest = draft.split()
        if is_cut and draft.is_cut:
            self._begin(header, draft.text, can_call=False)
            return
        self._begin(header, draft.text[: len(draft.text) - len(rest)])
        self._write(rest)

    def _begin(self, header: Message, text: str, *, can_call: bool = True) -> None:
        name = _function_of(header) if can_call else None
        kind: Kind = "tool_call" if name else "reasoning" if header.channel == "analysis" else "content"
        begin = Begin(
            index=len(self.message.parts),
            kind=kind,
            header=text,
            role=header.role,
            channel=header.channel,
            recipient=header.recipient,
            content_type=header.content_type,
            name=name,
            call_id=None if name is None else self._call_id(),
        )
        self._is_open = True
        self._emit(begin)

    def _close(self, mark: int | None) -> None:
        if self._is_open:
            self._is_open = False
            closed_by = None if mark is None else self._spell([mark])
            self._emit(End(index=len(self.message.parts) - 1, closed_by=closed_by))


def read_turn(harmony: Harmony, token_ids: Sequence[int]) -> ParsedMessage:
    """Returns the whole message of a finished turn."""
    stream = HarmonyStream(harmony)
    for token in token_ids:
        stream.push(token)
    stream.finish()
    return stream.message


def _function_of(header: Message) -> str | None:
    """Returns the function that a header calls, or None; a recipient outside `functions` keeps its full name."""
    if header.role != "assistant" or header.recipient in (None, *NOT_TOOLS):
        return None
    return str(header.recipient).removeprefix("functions.") or None

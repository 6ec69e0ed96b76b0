"""Words of a message header: author, recipient, channel and content type.

`parse_header` accepts what the format allows. `HeaderDraft` holds a header while the model writes it, valid or not:
it tells when the words can no longer be a header, and which of them are one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Literal

from firesteel.chat.format import CHANNELS, CONSTRAIN, ROLES, HarmonyError, Message

MAX_WORDS = 3  # per section: author or channel, recipient, content type
MAX_CHARACTERS = 256  # per section

Section = Literal["author", "channel", "constrain"]


def parse_header(role: str | None, author: str, channel: str | None, constraint: str | None) -> Message:
    """Parses the words of a header in order: author unless `role` is given, `to=recipient`, content type."""
    words = author.split()
    if role is None and not words:
        raise HarmonyError("the header has no role")
    writer = words.pop(0) if role is None or words[:1] == [role] else role
    if channel is not None:
        if not channel or channel[0].isspace():
            raise HarmonyError("the channel has no name")
        channel, *more = channel.split()
        words += more
    if constraint is not None:
        words.append(CONSTRAIN + constraint.strip())
    recipient = words.pop(0).removeprefix("to=") if words and words[0].startswith("to=") else None
    content_type = words.pop(0) if words else None
    if words or (content_type is not None and content_type.startswith("to=")):
        raise HarmonyError(f"the header has more than one recipient and one content type, at {content_type!r}")
    role, name = _parse_author(writer, is_addressed=recipient is not None)
    return Message(
        role=role, content="", name=name, channel=channel, recipient=recipient, content_type=content_type
    )


def _parse_author(word: str, *, is_addressed: bool) -> tuple[str, str | None]:
    """Parses `role`, `role:name` or the name of a tool: a dotted name, or any name in a header with a recipient."""
    role, colon, name = word.partition(":")
    if role in ROLES and role != "tool":
        return role, name if colon else None
    if is_addressed or "." in word or word == "tool":
        return "tool", word
    raise HarmonyError(f"unknown role {word!r}")


_TYPES = ("json", "code", "text")
_RECIPIENT = rf"(?:\s*to=(?P<recipient>[\w.-]+)(?:\s+(?P<type>{'|'.join(_TYPES)})(?!\w))?)?"
_CHANNEL = rf"\s*(?P<channel>{'|'.join(CHANNELS)})"
_NAMED = r"(?:\s*(?P<author>(?:system|developer|user|assistant)(?::[\w.-]+)?|[\w-]+(?:\.[\w-]+)+))?"
# Pattern of a section's known words, and words that may be cut off at its end; what follows is not a header.
# Without a <|start|> before it (key None), fewer words are accepted as a header.
_KNOWN: dict[Section | None, tuple[re.Pattern[str], tuple[str, ...]]] = {
    None: (re.compile(rf"(?:\s*(?P<author>assistant))?(?:{_CHANNEL}(?=\s+to=))?{_RECIPIENT}"), ("to=",)),
    "author": (re.compile(_NAMED + _RECIPIENT), (*ROLES, "functions.", "to=")),
    "channel": (re.compile(f"(?:{_CHANNEL})?{_RECIPIENT}"), (*CHANNELS, *_TYPES, "to=")),
    "constrain": (re.compile(rf"(?:\s*(?P<constraint>{'|'.join(_TYPES)}))?"), _TYPES),
}


@dataclass(slots=True)
class HeaderDraft:
    """A header while it is written. `role` is its author; None after `<|start|>`, where the words name it."""

    role: str | None = "assistant"
    sections: dict[Section, str] = field(default_factory=lambda: {"author": ""})
    now: Section = "author"

    @property
    def text(self) -> str:
        return "".join(self.sections.values())

    @property
    def is_impossible(self) -> bool:
        """Tells whether the current section is too long for a header."""
        section = self.sections[self.now]
        return len(section) > MAX_CHARACTERS or len(section.split(maxsplit=MAX_WORDS)) > MAX_WORDS

    @property
    def is_cut(self) -> bool:
        """Tells whether the unknown rest may be the beginning of a known word."""
        rest = self.split()[1].strip()
        return any(word.startswith(rest) for word in self._known(self.now)[1])

    def write(self, text: str) -> None:
        self.sections[self.now] += text

    def can_open(self, section: Section) -> bool:
        """Returns whether the words so far can be followed by this section."""
        if section in self.sections:
            return section == self.now and not self.sections[section].strip()
        if self.now == "author" and self.role is not None:
            return not self.split()[1]
        try:
            return self._parse().content_type is None
        except HarmonyError:
            return not self.text.strip()

    def can_close(self) -> bool:
        """Returns whether the words so far can be followed by `<|message|>`."""
        if self.now != "author" or self.role is None:
            return True
        return self.split()[1].strip() in ("", *CHANNELS, *_TYPES)

    def open(self, section: Section) -> None:
        self.sections.setdefault(section, "")
        self.now = section

    def read(self) -> Message:
        """Returns the header once it is complete."""
        try:
            header = self._parse()
        except HarmonyError:
            header = self.split()[0]
        if header.channel is None and header.content_type in CHANNELS:
            return replace(header, channel=header.content_type, content_type=None)
        return header

    def split(self) -> tuple[Message, str]:
        """Splits into the header's known words and the text after them, which is not part of the header."""
        header, rest = Message(role=self.role or "assistant", content=""), ""
        for section, text in self.sections.items():
            match = self._known(section)[0].match(text)
            assert match is not None  # every pattern matches the empty text
            rest = text[match.end() :]
            header = _add_words(header, match.groupdict())
        return header, rest if rest.strip() else ""

    def _known(self, section: Section) -> tuple[re.Pattern[str], tuple[str, ...]]:
        return _KNOWN[None if section == "author" and self.role is not None else section]

    def _parse(self) -> Message:
        sections = self.sections
        return parse_header(self.role, sections["author"], sections.get("channel"), sections.get("constrain"))


def _add_words(header: Message, words: dict[str, str | None]) -> Message:
    if words.get("author") is not None:
        role, name = _parse_author(str(words["author"]), is_addressed=True)
        header = replace(header, role=role, name=name)
    if words.get("constraint") is not None:
        header = replace(header, content_type=f"{CONSTRAIN}{words['constraint']}")
    return replace(
        header,
        channel=words.get("channel") or header.channel,
        recipient=words.get("recipient") or header.recipient,
        content_type=words.get("type") or header.content_type,
    )

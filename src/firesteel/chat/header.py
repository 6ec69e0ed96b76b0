"""Words of a message's header: who writes, to whom, in which channel. Knows no tokens.

`parse_header` takes what the format allows. `Draft` is a header while it is written, whatever is written: it says
when the words can no longer be one, and which of them are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Literal

from firesteel.chat.format import CHANNELS, CONSTRAIN, ROLES, HarmonyError, Message

MAX_WORDS = 3  # of a section: author or channel, recipient, content type
MAX_CHARACTERS = 256  # of a section

Section = Literal["author", "channel", "constrain"]


def parse_header(role: str | None, author: str, channel: str | None, constraint: str | None) -> Message:
    """A header's words in order: author unless `role` is given, `to=recipient`, content type."""
    words = author.split()
    if role is None and not words:
        raise HarmonyError("a header without a role")
    writer = words.pop(0) if role is None or words[:1] == [role] else role
    if channel is not None:
        if not channel or channel[0].isspace():
            raise HarmonyError("a channel without a name")
        channel, *more = channel.split()
        words += more
    if constraint is not None:
        words.append(CONSTRAIN + constraint.strip())
    recipient = words.pop(0).removeprefix("to=") if words and words[0].startswith("to=") else None
    content_type = words.pop(0) if words else None
    if words or (content_type is not None and content_type.startswith("to=")):
        raise HarmonyError(f"more in a header than one recipient and one content type, at {content_type!r}")
    role, name = _parse_author(writer, is_addressed=recipient is not None)
    return Message(
        role=role, content="", name=name, channel=channel, recipient=recipient, content_type=content_type
    )


def _parse_author(word: str, *, is_addressed: bool) -> tuple[str, str | None]:
    """`role`, `role:name`, or a tool's name: that of a namespace's member or of anyone with a recipient."""
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
# What a section may begin with, and the words that it may be cut in; the rest is text that wants no header.
# Where no <|start|> said that a header comes, fewer words are taken for one.
_KNOWN: dict[Section | None, tuple[re.Pattern[str], tuple[str, ...]]] = {
    None: (re.compile(rf"(?:\s*(?P<author>assistant))?(?:{_CHANNEL}(?=\s+to=))?{_RECIPIENT}"), ("to=",)),
    "author": (re.compile(_NAMED + _RECIPIENT), (*ROLES, "functions.", "to=")),
    "channel": (re.compile(f"(?:{_CHANNEL})?{_RECIPIENT}"), (*CHANNELS, *_TYPES, "to=")),
    "constrain": (re.compile(rf"(?:\s*(?P<constraint>{'|'.join(_TYPES)}))?"), _TYPES),
}


@dataclass(slots=True)
class Draft:
    """A header while it is written. `role` is its author where the prompt has named it, or none was."""

    role: str | None = "assistant"
    sections: dict[Section, str] = field(default_factory=lambda: {"author": ""})
    now: Section = "author"

    @property
    def text(self) -> str:
        return "".join(self.sections.values())

    @property
    def is_impossible(self) -> bool:
        """Whether the section being written is too long for a header's."""
        section = self.sections[self.now]
        return len(section) > MAX_CHARACTERS or len(section.split(maxsplit=MAX_WORDS)) > MAX_WORDS

    @property
    def is_cut(self) -> bool:
        """Whether what is unknown may be the beginning of a known word."""
        rest = self.split()[1].strip()
        return any(word.startswith(rest) for word in self._known(self.now)[1])

    def write(self, text: str) -> None:
        self.sections[self.now] += text

    def can_open(self, section: Section) -> bool:
        """Whether the words so far can be followed by this section."""
        if section in self.sections:
            return section == self.now and not self.sections[section].strip()
        if self.now == "author" and self.role is not None:
            return not self.split()[1]
        try:
            return self._parse().content_type is None
        except HarmonyError:
            return not self.text.strip()

    def can_close(self) -> bool:
        """Whether the words so far can be followed by `<|message|>`."""
        if self.now != "author" or self.role is None:
            return True
        return self.split()[1].strip() in ("", *CHANNELS, *_TYPES)

    def open(self, section: Section) -> None:
        self.sections.setdefault(section, "")
        self.now = section

    def read(self) -> Message:
        """The header as it stands, known to be whole."""
        try:
            header = self._parse()
        except HarmonyError:
            header = self.split()[0]
        if header.channel is None and header.content_type in CHANNELS:
            return replace(header, channel=header.content_type, content_type=None)
        return header

    def split(self) -> tuple[Message, str]:
        """What is known of the header, and the text after its known words, which is none of it."""
        header, rest = Message(role=self.role or "assistant", content=""), ""
        for section, text in self.sections.items():
            match = self._known(section)[0].match(text)
            assert match is not None  # every pattern takes the empty text
            rest = text[match.end() :]
            header = _learn(header, match.groupdict())
        return header, rest if rest.strip() else ""

    def _known(self, section: Section) -> tuple[re.Pattern[str], tuple[str, ...]]:
        return _KNOWN[None if section == "author" and self.role is not None else section]

    def _parse(self) -> Message:
        sections = self.sections
        return parse_header(self.role, sections["author"], sections.get("channel"), sections.get("constrain"))


def _learn(header: Message, found: dict[str, str | None]) -> Message:
    if found.get("author") is not None:
        role, name = _parse_author(str(found["author"]), is_addressed=True)
        header = replace(header, role=role, name=name)
    if found.get("constraint") is not None:
        header = replace(header, content_type=f"{CONSTRAIN}{found['constraint']}")
    return replace(
        header,
        channel=found.get("channel") or header.channel,
        recipient=found.get("recipient") or header.recipient,
        content_type=found.get("type") or header.content_type,
    )

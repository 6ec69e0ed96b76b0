"""Responses that are kept for later requests, within a bound; knows no engine and no HTTP."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from firesteel.server.http.errors import ApiError
from firesteel.server.responses.answers import InputItemList, OutputItem, Response
from firesteel.server.responses.output import new_name
from firesteel.server.responses.schema import InputText, Item, OutputText, Part

LEAST_BYTES = 1024  # that an entry counts: its own objects, besides what is written in them
MOST_ITEMS = 100  # on a page
_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class Stored:
    response: Response
    history: list[Item]  # of earlier responses
    given: list[Item]  # what this one was asked

    def conversation(self) -> list[Item]:
        """All that was said, this response included."""
        return [*self.history, *self.given, *map(as_item, self.response.output)]

    def count_bytes(self) -> int:
        """With the history, which this one keeps alive whether or not those before it are still there."""
        return LEAST_BYTES + sum(len(_encode(part)) for part in (self.response, self.given, self.history))


class ResponseStore:
    """The oldest go first when there is no room. One that is larger than all the room is not kept."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.num_bytes = 0
        self._entries: OrderedDict[str, tuple[Stored, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, stored: Stored) -> None:
        """Another one with the same name goes."""
        self._drop(stored.response.id)
        size = stored.count_bytes()
        if size > self.most_bytes:
            return
        while self.num_bytes + size > self.most_bytes:
            self._drop(next(iter(self._entries)))
        self._entries[stored.response.id] = (stored, size)
        self.num_bytes += size

    def get(self, name: str) -> Stored:
        if name not in self._entries:
            raise not_found(name)
        return self._entries[name][0]

    def find_previous(self, name: str) -> Stored:
        if name not in self._entries:
            raise ApiError(
                400, f"no response {name!r:.80} is kept: it was not stored, was deleted or had to make room",
                param="previous_response_id", code="previous_response_not_found",
            )  # fmt: skip
        return self._entries[name][0]

    def delete(self, name: str) -> None:
        if name not in self._entries:
            raise not_found(name)
        self._drop(name)

    def _drop(self, name: str) -> None:
        _, size = self._entries.pop(name, (None, 0))
        self.num_bytes -= size


def not_found(name: str) -> ApiError:
    return ApiError(404, f"no response {name!r:.80} is kept here", param="response_id", code="response_not_found")


def as_item(output: OutputItem) -> Item:
    """What was answered, as it is sent back."""
    return msgspec.convert(msgspec.to_builtins(output), Item)


def complete_items(items: Sequence[Item]) -> list[Item]:
    """Each with a name, and texts as parts."""
    return [
        replace(item, id=item.id or new_name("item"), content=_as_parts(item.content, item.role)) for item in items
    ]


def _as_parts(content: str | list[Part] | None, role: str | None) -> list[Part] | None:
    if isinstance(content, str):
        return [OutputText(text=content) if role == "assistant" else InputText(text=content)]
    return content


def list_items(items: Sequence[Item], query: Mapping[str, str]) -> InputItemList:
    """A page of them: at most `limit` after the one named `after`, the latest first unless `order` is asc."""
    ordered = list(items) if query.get("order") == "asc" else list(reversed(items))
    limit = query.get("limit", "20")
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit) <= MOST_ITEMS):
        raise ApiError(400, f"limit must be from 1 to {MOST_ITEMS}", param="limit")
    names = [item.id for item in ordered]
    after = query.get("after")
    if after is not None and after not in names:
        raise ApiError(400, f"no item {after!r:.80} was asked here", param="after")
    begin = 0 if after is None else names.index(after) + 1
    shown = ordered[begin : begin + int(limit)]
    return InputItemList(
        data=[show_item(item) for item in shown], first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None, has_more=begin + len(shown) < len(ordered),
    )  # fmt: skip


def show_item(item: Item) -> dict[str, Any]:
    """Without the fields that its kind does not have."""
    return {name: value for name, value in msgspec.to_builtins(item).items() if value is not None}

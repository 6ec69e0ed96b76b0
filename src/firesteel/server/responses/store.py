"""Responses kept for later requests, up to a limit of memory."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from firesteel.server.http.errors import ApiError
from firesteel.server.responses.answers import InputItemList, OutputItem, Response
from firesteel.server.responses.event_log import EventLog
from firesteel.server.responses.output import new_name
from firesteel.server.responses.schema import InputText, Item, OutputText, Part

ENTRY_BYTES = 1024  # counted per entry for its objects, besides the text in them
MAX_ITEMS = 100  # per page
_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class Stored:
    response: Response
    history: list[Item]  # of earlier responses
    given: list[Item]  # input of this response
    owner: str  # only its owner finds it
    log: EventLog | None = None  # events of a background response

    def conversation(self) -> list[Item]:
        """Returns all items so far, including those of this response."""
        return [*self.history, *self.items()]

    def count_bytes(self) -> int:
        """Returns the size with the history, which stays alive even after earlier entries were dropped."""
        texts = sum(len(_encode(part)) for part in (self.response, self.given, self.history))
        return ENTRY_BYTES + texts + (0 if self.log is None else self.log.num_bytes)

    def items(self) -> list[Item]:
        """Returns the items that are this response's own."""
        return [*self.given, *map(as_item, self.response.output)]


@dataclass(frozen=True, slots=True)
class StoreEntry:
    """What is kept, and what was counted when it was put: a response in progress grows."""

    stored: Stored
    num_bytes: int
    items: Mapping[str, Item]  # by id


class ResponseStore:
    """Drops the oldest entries when there is no room. A response larger than the limit is not kept."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.num_bytes = 0
        self._entries: OrderedDict[tuple[str, str], StoreEntry] = OrderedDict()
        self._holders: dict[tuple[str, str], list[tuple[str, str]]] = {}  # entries with an item, by owner and item

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, stored: Stored) -> None:
        """Keeps a response in place of one with the same name."""
        key = (stored.owner, stored.response.id)
        self._drop(key)
        size = stored.count_bytes()
        if size > self.most_bytes:
            return
        while self.num_bytes + size > self.most_bytes:
            self._drop(next(iter(self._entries)))
        items = {item.id: item for item in stored.items() if item.id}
        self._entries[key] = StoreEntry(stored, size, items)
        self.num_bytes += size
        for name in items:
            self._holders.setdefault((stored.owner, name), []).append(key)

    def get(self, name: str, owner: str) -> Stored:
        if (owner, name) not in self._entries:
            raise not_found(name)
        return self._entries[owner, name].stored

    def find_previous(self, name: str, owner: str) -> Stored:
        if (owner, name) not in self._entries:
            raise ApiError(
                400,
                f"response {name!r:.80} not found: it was not stored, was deleted or was dropped for lack of room",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        return self._entries[owner, name].stored

    def find_item(self, name: str, owner: str, place: str) -> Item:
        """Returns an item of a stored response by its id; `place` is the field that names it."""
        holders = self._holders.get((owner, name))
        if not holders:
            raise ApiError(
                404,
                f"item {name!r:.80} not found: its response was not stored, was deleted or was dropped for lack of "
                "room; send the item itself",
                param=place,
                code="item_not_found",
            )
        return self._entries[holders[-1]].items[name]

    def delete(self, name: str, owner: str) -> None:
        if (owner, name) not in self._entries:
            raise not_found(name)
        self._drop((owner, name))

    def _drop(self, key: tuple[str, str]) -> None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        self.num_bytes -= entry.num_bytes
        for name in entry.items:
            holders = self._holders[key[0], name]
            holders.remove(key)
            if not holders:
                del self._holders[key[0], name]


def not_found(name: str) -> ApiError:
    return ApiError(404, f"response {name!r:.80} not found", param="response_id", code="response_not_found")


def as_item(output: OutputItem) -> Item:
    """Converts an output item to the input item that a client would send back."""
    return msgspec.convert(msgspec.to_builtins(output), Item)


def complete_items(items: Sequence[Item]) -> list[Item]:
    """Gives each item an id, and texts as parts."""
    return [
        replace(item, id=item.id or new_name("item"), content=_as_parts(item.content, item.role)) for item in items
    ]


def _as_parts(content: str | list[Part] | None, role: str | None) -> list[Part] | None:
    if isinstance(content, str):
        return [OutputText(text=content) if role == "assistant" else InputText(text=content)]
    return content


def list_items(items: Sequence[Item], query: Mapping[str, str]) -> InputItemList:
    """Returns a page: at most `limit` items after the one with id `after`, latest first unless `order` is asc."""
    ordered = list(items) if query.get("order") == "asc" else list(reversed(items))
    limit = query.get("limit", "20")
    if not (
        re.fullmatch("[0-9]{1,9}", limit) and 1 <= int(limit) <= MAX_ITEMS
    ):  # int() refuses thousands of digits
        raise ApiError(400, f"limit must be from 1 to {MAX_ITEMS}", param="limit")
    names = [item.id for item in ordered]
    after = query.get("after")
    if after is not None and after not in names:
        raise ApiError(400, f"no input item with id {after!r:.80}", param="after")
    begin = 0 if after is None else names.index(after) + 1
    shown = ordered[begin : begin + int(limit)]
    return InputItemList(
        data=[show_item(item) for item in shown],
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
        has_more=begin + len(shown) < len(ordered),
    )


def show_item(item: Item) -> dict[str, Any]:
    """Omits the fields that the item's kind does not have."""
    return {name: value for name, value in msgspec.to_builtins(item).items() if value is not None}

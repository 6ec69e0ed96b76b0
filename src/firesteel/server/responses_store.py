"""Responses that are kept for later requests, within a bound; knows no engine and no HTTP."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from firesteel.server.errors import ApiError
from firesteel.server.responses_answers import OutputItem, Response
from firesteel.server.responses_schema import Item

LEAST_BYTES = 1024  # that an entry counts: its own objects, besides what is written in them
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
        """Without the history, which belongs to those before it: 8 bytes for each place in the list."""
        own = len(_encode(self.response)) + len(_encode(self.given))
        return LEAST_BYTES + own + 8 * len(self.history)


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

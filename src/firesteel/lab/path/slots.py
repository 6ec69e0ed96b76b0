"""The slots of a kernel path: which implementation took each, as far as it was seen, and the verdict on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from firesteel.lab.codec import from_json, to_json
from firesteel.lab.verdict import Verdict, conclude

MOE, DENSE, ATTENTION, SINKS, GRAPHS, ACTIVATION, KV = SLOTS = (
    "moe",  # matrix products of the experts
    "dense",  # those of QKV, output projection and LM head
    "attention",
    "sinks",  # attention sinks: on or off
    "graphs",  # CUDA graphs: on or off
    "activation",  # what the experts' inputs are rounded to
    "kv",  # type of the KV cache
)
LOG, TRACE, LEDGER, ENVIRONMENT, COMMAND, DEVICE, ANSWERS = SOURCES = (
    "log",
    "trace",
    "ledger",
    "environment",
    "command",
    "device",
    "answers",
)


class SlotState(Enum):
    SEEN = "seen"
    NOT_SEEN = "not seen"
    CONTRADICTED = "contradicted"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A line that shows which implementation took a slot."""

    value: str
    source: str  # one of SOURCES
    line: str
    about: str = ""

    def __str__(self) -> str:
        return f"{self.source}: {self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRow:
    slot: str
    state: SlotState = SlotState.NOT_SEEN
    values: tuple[str, ...] = ()
    expected: str = ""  # as --expect writes it; empty if anything is fine
    is_required: bool = False  # True: the path is unproven unless this slot was seen
    sightings: tuple[Sighting, ...] = ()
    reason: str = ""  # why it is contradicted or not applicable
    cure: str = ""  # what would change it, or make it visible

    @property
    def value(self) -> str:
        return "+".join(self.values)

    @property
    def verdict(self) -> Verdict:
        return {
            SlotState.SEEN: Verdict.PASSED,
            SlotState.CONTRADICTED: Verdict.FAILED,
            SlotState.NOT_APPLICABLE: Verdict.NOT_APPLICABLE,
            SlotState.NOT_SEEN: Verdict.UNPROVEN,
        }[self.state]

    @property
    def counts(self) -> bool:
        """False for a slot that was neither seen nor required: it decides nothing."""
        return self.is_required or self.state is not SlotState.NOT_SEEN

    def in_words(self) -> str:
        if self.reason:
            return self.reason
        if self.state is SlotState.SEEN:
            return f"{self.slot}={self.value} ({self.sightings[0]})"
        return f"{self.slot} was not seen" + (f" (expected: {self.expected})" if self.expected else "")

    def as_dict(self) -> dict[str, Any]:
        return {"verdict": self.verdict.value, "value": self.value, **to_json(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotTable:
    """The judged slots of a server, by name and in the order of SLOTS."""

    engine: str = ""
    path: str = ""  # the named path it was judged as
    slots: Mapping[str, SlotRow] = field(default_factory=dict)

    @property
    def rows(self) -> tuple[SlotRow, ...]:
        return tuple(self.slots.values())

    @property
    def verdict(self) -> Verdict:
        return conclude((row.verdict for row in self.rows if row.counts), needs_all=True)

    def in_words(self) -> str:
        """Returns what was seen, such as `moe=cutlass, attention=flashinfer`."""
        seen = [f"{row.slot}={row.value}" for row in self.rows if row.values]
        return ", ".join(seen) or "no slot was seen"

    def with_row(self, row: SlotRow) -> SlotTable:
        return SlotTable(engine=self.engine, path=self.path, slots={**self.slots, row.slot: row})

    def as_dict(self) -> dict[str, Any]:
        return {
            "engine": self.engine,
            "path": self.path,
            "verdict": self.verdict.value,
            "slots": {name: row.as_dict() for name, row in self.slots.items()},
        }


def make_table(engine: str, path: str, rows: Iterable[SlotRow]) -> SlotTable:
    return SlotTable(engine=engine, path=path, slots={row.slot: row for row in rows})


def parse_table(content: Mapping[str, Any]) -> SlotTable:
    return from_json(SlotTable, content, "the table of slots")

"""What a run of the lab is asked to do, whole enough to be done again; does nothing itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from firesteel.config import hide_secrets
from firesteel.errors import UserError
from firesteel.lab.level import GATE, MODES, TITLES

DEFAULT_MODEL = "kindling"
STRESS, QUICK_STRESS = (200, 8, 100), (40, 4, 20)  # requests, at once, in a row
MOST_AT_ONCE = 512  # a thread and a connection each, all in one process


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    mode: str = "all"
    level: str = ""  # one alone, with the gate where it measures
    engine: str = "firesteel"  # one of engines.KINDS, or a command line with {port}
    model: str = DEFAULT_MODEL
    url: str = ""  # of a server that runs already
    flags: tuple[str, ...] = ()  # for the engine's command line
    path: str = ""  # of the rules: the kernel path that must be seen; empty is any that is no fallback
    trace: str = ""  # a profile of the engine, as PyTorch or nsys write it
    gates: tuple[str, ...] = ()  # of the matrix, as kv_dtype=auto,fp8; empty chooses
    baseline: str = ""  # result.json of an earlier run; empty is the one kept in the folder
    slower: float = 3.0  # percent from which a figure counts as slower than the baseline's
    more_gb: float = 1.0  # of peak memory from which it counts as more
    reference_url: str = ""  # of a server whose tokens and likelihoods are right
    quick: bool = False
    debug: bool = False
    seed: int = 7
    ready_s: float = 1800.0
    answer_s: float = 600.0
    grace_s: float = 45.0
    requests: int | None = None  # of the stress; None is what the level says
    concurrency: int | None = None
    sequential: int | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise UserError(f"--mode {self.mode}: must be one of {', '.join(MODES)}")
        if self.level and self.level not in TITLES:
            raise UserError(f"--level {self.level}: must be one of {', '.join(TITLES)}")
        if self.url and self.flags:
            raise UserError("flags for an engine make no sense with --url: that server runs already")
        self._check_stress()

    @property
    def names_model(self) -> bool:
        """Whether its model is the one meant: of a server that ran already, the default is nobody's choice."""
        return not self.url or self.model != DEFAULT_MODEL

    @property
    def shown_engine(self) -> str:
        """As it may be shown: a command line may hold a key."""
        return hide_secrets((self.engine,))[0]

    @property
    def levels(self) -> tuple[str, ...]:
        """Those asked for; the gate comes before what it guards."""
        if not self.level:
            return MODES[self.mode]
        if self.level == "5":  # there must be something to compare
            return (GATE, "4", "5")
        return (GATE, self.level) if float(self.level) > float(GATE) else (self.level,)

    def flag(self, name: str) -> list[str]:
        """Values that the engine's flags give `--name`, as --name value or --name=value."""
        pairs = zip(self.flags, self.flags[1:], strict=False)
        joined = [one.partition("=")[2] for one in self.flags if one.startswith(f"--{name}=")]
        return [value for word, value in pairs if word == f"--{name}"] + joined

    @property
    def num_requests(self) -> int:
        return self.requests or self.usual_stress[0]

    @property
    def num_at_once(self) -> int:
        return self.concurrency or min(self.usual_stress[1], self.num_requests)

    @property
    def num_sequential(self) -> int:
        return self.sequential or self.usual_stress[2]

    @property
    def usual_stress(self) -> tuple[int, int, int]:
        """Requests, how many of them at once, and in a row, where the order names none."""
        return QUICK_STRESS if self.quick else STRESS

    def _check_stress(self) -> None:
        for name in ("requests", "concurrency", "sequential"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise UserError(f"--{name} {value}: must be a whole number from 1")
        if self.num_at_once > MOST_AT_ONCE:
            raise UserError(f"--concurrency {self.concurrency}: the lab's own client takes {MOST_AT_ONCE} at most")
        if self.num_at_once > self.num_requests:
            raise UserError(
                f"--concurrency {self.concurrency}: there are only {self.num_requests} requests: raise --requests"
            )

    @property
    def reductions(self) -> list[str]:
        """What --quick left out, and a stress that was asked to be less, for the report."""
        lines = {"3": self._reduced_stress()}
        if self.quick:
            lines |= {
                "2": "correctness: 8 texts and 6 continuations instead of all texts and 24",
                "4": "benchmark: prompts of 128 and 512 tokens, answers of 32, depths 0 and 1024, "
                "concurrency 1 and 4",
                "6": "matrix: 2 x 2 gates",
            }
        return [line for level, line in sorted(lines.items()) if line and level in self.levels]

    def _reduced_stress(self) -> str:
        """Empty where it is as much as the level says, or more."""
        asked = (self.num_requests, self.num_at_once, self.num_sequential)
        figures, usual = (f"{a} requests at concurrency {b} and {c} in a row" for a, b, c in (asked, STRESS))
        if self.quick:
            limit = "prompts of up to 2048 tokens instead of the model's limit"
            return f"stress: {figures} instead of {usual}, {limit}"
        is_less = any(one < full for one, full in zip(asked, STRESS, strict=True))
        return f"stress: {figures} instead of {usual}" if is_less else ""

    def as_dict(self) -> dict[str, Any]:
        """As it may be kept: values of secret flags are hidden."""
        return {**dataclasses.asdict(self), "engine": self.shown_engine, "flags": hide_secrets(self.flags)}

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> Order:
        """As it stands in a result; a field this version does not know is an error."""
        known = {one.name for one in dataclasses.fields(cls)}
        if unknown := set(content) - known:
            raise UserError(f"the order has fields that this firesteel does not know: {', '.join(sorted(unknown))}")
        fields: dict[str, Any] = {
            name: tuple(one) if isinstance(one, list) else one for name, one in content.items()
        }
        return cls(**fields)

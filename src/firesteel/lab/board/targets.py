"""Targets for a model on a GPU, by depth, and the figures of other engines there: a TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from firesteel.device.catalogue import shorten_name
from firesteel.errors import UserError
from firesteel.lab.bench.plan import HEADLINE_PP, HEADLINE_TG
from firesteel.lab.bench.public_models import find_public_name
from firesteel.lab.board.entry import FIGURES, BoardEntry, Measured
from firesteel.lab.codec import from_json
from firesteel.lab.verdict import Verdict, conclude

SHIPPED = Path(__file__).parent / "targets"
SHORT_NAMES = {"pp_tok_s": "pp", "tg_tok_s": "tg", "ttft_ms": "TTFT", "tpot_ms": "TPOT"}
ByDepth = Mapping[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedTarget:
    """Bounds of a figure of one stream, by depth."""

    figure: str
    pp: int = HEADLINE_PP
    tg: int = HEADLINE_TG
    least: ByDepth = field(default_factory=dict)
    most: ByDepth = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.figure not in FIGURES or bool(self.least) == bool(self.most):
            known = ", ".join(FIGURES)
            raise UserError(
                f"a target of {self.figure!r} must be of {known}, and have either least or most, by depth"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedEngine:
    """Figures of another engine with the headline's workload, by depth."""

    name: str
    source: str = ""
    pp_tok_s: ByDepth = field(default_factory=dict)
    tg_tok_s: ByDepth = field(default_factory=dict)
    ttft_ms: ByDepth = field(default_factory=dict)
    tpot_ms: ByDepth = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetVerdict:
    """A target at one depth, and the verdict on a configuration."""

    name: str
    wanted: str
    found: Measured | None
    verdict: Verdict
    reason: str

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "wanted": self.wanted, "verdict": self.verdict.value, "reason": self.reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    model: str = ""  # empty: of any model
    gpu: str = ""
    target: tuple[SpeedTarget, ...] = ()
    engine: tuple[PublishedEngine, ...] = ()

    def apply_to(self, model: str, device: str) -> bool:
        is_model = not self.model or (find_public_name(self.model) or self.model) == model
        return is_model and (not self.gpu or shorten_name(self.gpu) == shorten_name(device))

    def judge(self, entry: BoardEntry) -> list[TargetVerdict]:
        return [
            judge_target(target, depth, bound, entry)
            for target in self.target
            for depth, bound in (target.least or target.most).items()
        ]


def judge_target(target: SpeedTarget, depth: int, bound: float, entry: BoardEntry) -> TargetVerdict:
    """Judges by the interval: a bound inside of it is not judged."""
    is_least = bool(target.least)
    found = entry.figures.get((target.figure, target.pp, target.tg, depth))
    at = f" @ d{depth}" if depth else ""
    name = f"{SHORT_NAMES[target.figure]} of pp{target.pp} tg{target.tg}{at}"
    wanted = (
        f"{'at least' if is_least else 'at most'} {bound:g} {'ms' if target.figure.endswith('_ms') else 'tok/s'}"
    )
    if found is None:
        verdict, reason = Verdict.UNPROVEN, f"not measured: --pp {target.pp} --tg {target.tg} --depths {depth}"
    elif found.low is None or found.high is None:
        verdict, reason = Verdict.UNPROVEN, "too few runs"
    elif found.low <= bound <= found.high:
        verdict, reason = Verdict.UNPROVEN, "within the noise: more runs are needed"
    else:
        verdict, reason = Verdict.of((found.low > bound) == is_least), ""
    return TargetVerdict(name=name, wanted=wanted, found=found, verdict=verdict, reason=reason)


def conclude_targets(verdicts: list[TargetVerdict]) -> Verdict:
    return conclude((row.verdict for row in verdicts), needs_all=True)


def read_targets(name: str) -> Targets:
    """Reads a file, or one that ships with firesteel, such as spark.toml."""
    path = Path(name)
    if not path.exists():
        path = SHIPPED / f"{path.name.removesuffix('.toml')}.toml"
    if not path.exists():
        shipped = ", ".join(sorted(file.name for file in SHIPPED.glob("*.toml")))
        raise UserError(f"--targets {name}: no such file; those that ship with firesteel are {shipped}")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"--targets {path} cannot be read: {error}") from error
    if unknown := sorted(set(content) - set(Targets.__slots__)):
        raise UserError(f"--targets {path}: unknown {', '.join(unknown)}; it has {', '.join(Targets.__slots__)}")
    return from_json(Targets, with_numbers(content), f"--targets {path}")


def with_numbers(content: Any) -> Any:
    """Returns the content with depths, which TOML has as texts, as numbers."""
    if isinstance(content, list):
        return [with_numbers(item) for item in content]
    if not isinstance(content, dict):
        return content
    return {int(name) if name.isdecimal() else name: with_numbers(value) for name, value in content.items()}

"""Finds the lines of the evidence that show which implementation took a slot."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest

from firesteel.lab.path.engine_rules import NONE, Downgrade, EngineRules, Sign
from firesteel.lab.path.evidence import CPU, PathEvidence
from firesteel.lab.path.log_message import find_message
from firesteel.lab.path.slots import COMMAND, DEVICE, ENVIRONMENT, GRAPHS, LEDGER, LOG, SLOTS, TRACE, Sighting

SHOWN = 3  # lines per value of a slot
MAX_LINE = 300  # characters; vLLM writes its whole configuration on one line
SightingsBySlot = dict[str, list[Sighting]]
Match = Callable[[str], re.Match[str] | None]


def find_sightings(rules: EngineRules, evidence: PathEvidence) -> SightingsBySlot:
    found: SightingsBySlot = {slot: [] for slot in SLOTS}
    later: list[tuple[Sign, Sighting]] = []  # their meaning depends on the others
    if evidence.device == CPU:
        found[GRAPHS].append(Sighting(value=NONE, source=DEVICE, line="a CPU has no CUDA graphs"))
    for sign, sighting in _read_all(rules, evidence):
        if sign.is_weak or len(sign.slots) > 1:
            later.append((sign, sighting))
        else:
            _add(found[sign.slot], sighting)
    strong = {slot for slot in SLOTS if found[slot]}
    for sign, sighting in later:
        if len(sign.slots) > 1:
            _add_shared(found, sign, sighting)
        elif sign.slot not in strong:
            _add(found[sign.slot], sighting)
    return found


def find_downgrade(rules: EngineRules, slot: str, value: str, evidence: PathEvidence) -> Downgrade | None:
    """Returns the rule by which a value means another one on this GPU, whatever the package's version."""
    for downgrade in rules.downgrades:
        is_named = downgrade.slot == slot and downgrade.value == value
        if is_named and evidence.capability is not None and evidence.capability >= downgrade.since:
            return downgrade
    return None


def is_older(version: str, limit: str) -> bool:
    """Compares the numbers of two versions; what follows the numbers, such as `+cu130`, does not count."""
    found, wanted = (
        [int(number) for number in re.findall(r"\d+", text.split("+")[0])] for text in (version, limit)
    )
    pairs = list(zip_longest(found, wanted, fillvalue=0))
    return [ours for ours, _ in pairs] < [theirs for _, theirs in pairs]


def _read_all(rules: EngineRules, evidence: PathEvidence) -> Iterator[tuple[Sign, Sighting]]:
    yield from _read(LOG, evidence.log, [(sign, sign.log) for sign in rules.signs], find_message)
    yield from _read(TRACE, evidence.kernel_lines(), [(sign, sign.kernels) for sign in rules.signs], None)
    yield from _read(LEDGER, evidence.ledger_lines(), [(sign, sign.ledger) for sign in rules.signs], str)
    whole = [(sign, tuple(f"(?:{pattern})$" for pattern in sign.environment)) for sign in rules.signs]
    yield from _read(ENVIRONMENT, evidence.environment_lines(), whole, str)
    yield from _read(COMMAND, evidence.commands, [(sign, sign.command) for sign in rules.signs], None)


def _read(
    source: str,
    lines: Iterable[str],
    signs: Sequence[tuple[Sign, tuple[str, ...]]],
    find_start: Callable[[str], str] | None,
) -> Iterator[tuple[Sign, Sighting]]:
    """Yields what lines of one source show. `find_start` returns where patterns begin; None: anywhere."""
    present = [(sign, patterns) for sign, patterns in signs if patterns]
    if not present:
        return
    quick = _compile([pattern for _, patterns in present for pattern in patterns], anywhere=find_start is None)
    compiled = [
        (sign, [_compile([pattern], anywhere=find_start is None, keep_groups=True) for pattern in patterns])
        for sign, patterns in present
    ]
    for line in lines:
        text = line.strip() if find_start is None else find_start(line)
        if not quick(text):
            continue
        for sign, matches in compiled:
            match = next((match for matcher in matches if (match := matcher(text))), None)
            if match is not None:
                value = sign.value or sign.prefix + match["value"].lower()
                yield sign, Sighting(value=value, source=source, line=_shorten(match), about=sign.about)


def _compile(patterns: Sequence[str], *, anywhere: bool, keep_groups: bool = False) -> Match:
    """Compiles patterns into one; names of groups, which may occur once only, are dropped unless kept."""
    texts = patterns if keep_groups else [pattern.replace("(?P<value>", "(?:") for pattern in patterns]
    compiled = re.compile("|".join(f"(?:{text})" for text in texts))
    return compiled.search if anywhere else compiled.match


def _shorten(match: re.Match[str]) -> str:
    """Returns the line or, if it is long, the part around the end of the match."""
    line, first = match.string, max(0, match.end() - MAX_LINE // 2)
    return line if len(line) <= MAX_LINE else f"... {line[first : first + MAX_LINE]} ..."


def _add(known: list[Sighting], sighting: Sighting) -> None:
    same = [other for other in known if other.value == sighting.value]
    if len(same) < SHOWN and sighting not in same:
        known.append(sighting)


def _add_shared(found: SightingsBySlot, sign: Sign, sighting: Sighting) -> None:
    """Gives a line that is true of one of several slots to the first that no other line explains.

    If one of the slots is known to have this value, that explains the line already.
    """
    if any(other.value == sighting.value for slot in sign.slots for other in found[slot]):
        return
    slot = next((slot for slot in sign.slots if not found[slot]), sign.slots[-1])
    _add(found[slot], sighting)

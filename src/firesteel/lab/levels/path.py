"""Level 1.5: the kernels that ran are the ones that should have; a failure makes later figures worthless."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from firesteel.device import find_device
from firesteel.kernels.op.requirement import UNREAD, VERDICTS
from firesteel.lab.level import Checks, LevelResult
from firesteel.lab.levels.smoke import ask_together, random_prompt
from firesteel.lab.path.backend import Evidence, Summary, load_rules, summarise
from firesteel.lab.path.imports import find_libraries, find_packages, judge_places
from firesteel.lab.servers.target import Target, list_artefacts
from firesteel.lab.spec import Order
from firesteel.lab.trace import count_kernels

MOST_LINES = 1_000_000


def check_path(target: Target, order: Order, cross_check: str | None = None) -> LevelResult:
    """`cross_check` is what a run with a profiler found wrong; None if there was no such run."""
    rules = load_rules(target.kind)
    if rules is None or is_unseen(target, order):
        if order.path:
            return LevelResult(level="1.5", passed=False, reason=f"--path {order.path}: {why_not(target, order)}")
        return LevelResult(level="1.5", passed=True, was_run=False, reason=f"not judged: {why_not(target, order)}")
    exercise(target, order)
    evidence = gather(target, order)
    checks = Checks()
    summary = summarise(rules, evidence, path=order.path, require=",".join(order.flag("require")))
    checks.figures["backend"] = summary.as_dict()
    checks.add("kernels", not summary.faults, "; ".join(summary.faults) or in_words(summary))
    if evidence.ledger is not None and evidence.device == "gpu":
        check_proofs(evidence.ledger, checks)
    if target.server is not None:
        check_imports(target, rules.packages, checks)
    if cross_check is not None:
        checks.add("profiler", not cross_check, cross_check or "the profiler saw the launches of the ledger")
    return checks.result("1.5")


def is_unseen(target: Target, order: Order) -> bool:
    """A server that ran already leaves no log here: of another engine, only a profile says what ran."""
    return target.server is None and target.kind != "firesteel" and not order.trace


def why_not(target: Target, order: Order) -> str:
    if order.url:
        return f"the log of {order.url} is not seen; --engine and --trace say whose it is and what ran"
    return f"there are no rules for {order.shown_engine}"


def exercise(target: Target, order: Order) -> None:
    """A prompt and decoding at two batch sizes, so that every kind of step has run."""
    with target.step("prompts and decoding for the kernel path"):
        for count in (1, 4):
            prompts = [random_prompt(order.seed + number, 200) for number in range(count)]
            ask_together(lambda prompt: target.api.complete(prompt, max_tokens=8, temperature=0), prompts)


def gather(target: Target, order: Order) -> Evidence:
    """The machine is known of a server that the lab started on it; one that ran already may be anywhere."""
    log = () if target.server is None else tuple(read_lines(target.server.log))
    return Evidence(
        log=log, ledger=target.read_ledger() if target.kind == "firesteel" else None,
        kernels=count_kernels(Path(order.trace)) if order.trace else None,
        machine=None if target.server is None else find_device(),
    )  # fmt: skip


def read_lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace") as lines:
        yield from islice(lines, MOST_LINES)


def in_words(summary: Summary) -> str:
    name = f"path {summary.path.name}" if summary.path.name else "no fallback"
    return f"{name}: {', '.join(summary.seen)} seen"


def check_proofs(ledger: Mapping[str, Any], checks: Checks) -> None:
    """All machine code that ran must have been read: what is in the rest is not known. Kernels without any were
    interpreted, or the server does not tell."""
    codes = list_artefacts(ledger)
    verdicts = {(code["artefact"], code["kernel"]): code["verdict"] for code in codes}
    launched = {kernel for row in ledger["ran"] for kernel in row.get("launches") or ()}
    told = {code["kernel"] for code in codes}
    unclear = {code["kernel"] for code in codes if code["verdict"] in (None, UNREAD)}
    unread = sorted(launched - told | unclear)
    counts = Counter(one for one in verdicts.values() if one not in (None, UNREAD))
    found = ", ".join(f"{counts[one]} {one}" for one in VERDICTS if counts[one])
    words = f"machine code of {counts.total()} kernels read: {found}" if counts else "no machine code was read"
    checks.add("proof", not unread, f"{words}; not that of {', '.join(unread)}" if unread else words)


def check_imports(target: Target, names: tuple[str, ...], checks: Checks) -> None:
    assert target.server is not None
    family = target.server.family.living()
    leader = next((one for one in family if one.pid == target.server.family.leader), None)
    packages = {} if leader is None else find_packages(psutil.Process(leader.pid), names)
    libraries = find_libraries(family)
    faults = judge_places(packages, libraries)
    checks.figures |= {"packages": packages, "libraries": libraries}
    places = ", ".join(f"{name} from {place}" for name, place in packages.items()) or "no Python packages"
    checks.add("imports", not faults, "; ".join(faults) or places)

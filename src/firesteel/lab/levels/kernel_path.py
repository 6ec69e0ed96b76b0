"""Level 1.5: the kernels that ran are the expected ones. A failure makes all later figures invalid."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from firesteel.device import find_device
from firesteel.kernels.op.requirement import UNREAD, VERDICTS
from firesteel.lab.level import KERNEL_PATH
from firesteel.lab.level_result import Checks, LevelResult
from firesteel.lab.levels.context import LevelContext
from firesteel.lab.levels.smoke import ask_together, random_prompt
from firesteel.lab.path.backend import BackendSummary, PathEvidence, load_rules, summarise
from firesteel.lab.path.imports import find_libraries, find_packages, judge_places
from firesteel.lab.path.ledger import ServerLedger
from firesteel.lab.path.ranks import awaits_ranks
from firesteel.lab.servers.supervisor import SupervisedServer
from firesteel.lab.servers.target import PROOFS_POLL_S, PROOFS_S, Target
from firesteel.lab.spec import LabSpec
from firesteel.lab.trace import count_kernels

MAX_LINES = 1_000_000


def check_kernel_path(context: LevelContext) -> LevelResult:
    target, spec = context.target, context.spec
    rules = load_rules(target.kind)
    if rules is None or is_unobservable(target, spec):
        why = why_not_judged(spec)
        if spec.path:
            return LevelResult(level=KERNEL_PATH, passed=False, reason=f"--path {spec.path}: {why}")
        return LevelResult(level=KERNEL_PATH, passed=True, was_run=False, reason=f"not judged: {why}")
    exercise(target, spec)
    evidence = gather_evidence(target, spec)
    checks = Checks(KERNEL_PATH)
    summary = summarise(rules, evidence, path=spec.path, require=",".join(spec.engine_flag("require")))
    checks.add("kernels", not summary.faults, "; ".join(summary.faults) or describe(summary))
    if evidence.ledger is not None and evidence.device == "gpu":
        check_proofs(evidence.ledger, checks)
    if target.server is not None:
        check_imports(target.server, rules.packages, checks)
    if context.cross_check is not None:
        words = context.cross_check or "the profiler saw the launches of the ledger"
        checks.add("profiler", not context.cross_check, words)
    return checks.result(backend=summary)


def is_unobservable(target: Target, spec: LabSpec) -> bool:
    """Returns whether nothing shows what ran: the lab has no log of a server that it did not start.

    Firesteel's ledger, or a profile, would show it all the same.
    """
    return target.server is None and target.kind != "firesteel" and not spec.trace


def why_not_judged(spec: LabSpec) -> str:
    if spec.url:
        return f"the log of {spec.url} is not accessible; name its engine (--engine) and add a profile (--trace)"
    return f"there are no rules for {spec.shown_engine}"


def exercise(target: Target, spec: LabSpec) -> None:
    """Sends prompts and decodes at two batch sizes, so that every kind of step has run."""
    with target.step("prompts and decoding for the kernel path"):
        for count in (1, 4):
            prompts = [random_prompt(spec.seed + number, 200) for number in range(count)]
            ask_together(lambda prompt: target.api.complete(prompt, max_tokens=8, temperature=0), prompts)


def gather_evidence(target: Target, spec: LabSpec) -> PathEvidence:
    """Collects evidence. The machine is known only if the lab started the server: others may run anywhere."""
    return PathEvidence(
        log=() if target.server is None else read_log(target, target.server.log),
        ledger=target.read_ledger() if target.kind == "firesteel" else None,
        kernels=count_kernels(Path(spec.trace)) if spec.trace else None,
        machine=None if target.server is None else find_device(),
    )


def read_log(target: Target, path: Path) -> tuple[str, ...]:
    """Returns the lines of a server's log; waits while our plugin in vLLM still reads machine code."""
    deadline = time.monotonic() + PROOFS_S
    while awaits_ranks(lines := tuple(read_lines(path))) and time.monotonic() < deadline:
        target.on_progress("the plugin is reading machine code")
        time.sleep(PROOFS_POLL_S)
    return lines


def read_lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace") as lines:
        yield from islice(lines, MAX_LINES)


def describe(summary: BackendSummary) -> str:
    name = f"path {summary.path.name}" if summary.path.name else "no fallback"
    return f"{name}: {', '.join(summary.seen)} seen"


def check_proofs(ledger: ServerLedger, checks: Checks) -> None:
    """Requires that all machine code was read.

    Launched kernels without machine code were interpreted, or the server does not report them.
    """
    codes = ledger.machine_code
    verdicts = {(code.artefact, code.kernel): code.verdict for code in codes}
    launched = {kernel for calls in ledger.ran for kernel in calls.launches}
    reported = {code.kernel for code in codes}
    unclear = {code.kernel for code in codes if code.verdict in (None, UNREAD)}
    unread = sorted(launched - reported | unclear)
    counts = Counter(verdict for verdict in verdicts.values() if verdict not in (None, UNREAD))
    listed = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
    words = f"machine code of {counts.total()} kernels read: {listed}" if counts else "no machine code was read"
    checks.add("proof", not unread, f"{words}; not that of {', '.join(unread)}" if unread else words)


def check_imports(server: SupervisedServer, names: tuple[str, ...], checks: Checks) -> None:
    processes = server.processes.find_living()
    leader = next((process for process in processes if process.pid == server.processes.leader), None)
    packages = {} if leader is None else find_packages(psutil.Process(leader.pid), names)
    libraries = find_libraries(processes)
    faults = judge_places(packages, libraries)
    checks.facts |= {"packages": packages, "libraries": libraries}
    places = ", ".join(f"{name} from {place}" for name, place in packages.items()) or "no Python packages"
    checks.add("imports", not faults, "; ".join(faults) or places)

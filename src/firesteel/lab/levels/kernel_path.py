"""Level 1.5: the slots of the kernel path hold what is expected. A failure makes all later figures invalid."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from firesteel.device import find_device
from firesteel.kernels.op.requirement import UNREAD, VERDICTS
from firesteel.lab.codec import to_json
from firesteel.lab.level import KERNEL_PATH
from firesteel.lab.level_result import Checks, LevelResult
from firesteel.lab.levels.context import LevelContext
from firesteel.lab.levels.smoke import ask_together, random_prompt
from firesteel.lab.path.engine_rules import EngineRules, load_rules
from firesteel.lab.path.evidence import GPU, PathEvidence, describe_machine
from firesteel.lab.path.imports import ServerImports, find_libraries, judge_imports
from firesteel.lab.path.judge import judge_slots
from firesteel.lab.path.ledger import ServerLedger
from firesteel.lab.path.ranks import awaits_ranks, judge_ranks
from firesteel.lab.path.requirements import judge_requirements, list_references
from firesteel.lab.path.slots import MOE, SlotState, SlotTable
from firesteel.lab.servers.target import PROOFS_POLL_S, PROOFS_S, Target
from firesteel.lab.spec import LabSpec
from firesteel.lab.trace import count_kernels
from firesteel.lab.verdict import Verdict

MAX_LINES = 1_000_000
FUSED_MOE_CURE = "FlashInfer's fused MoE is missing: install flashinfer-python with nvcc or flashinfer-cubin"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProcess:
    """What the processes of a server show; empty if the lab did not start it."""

    imports: ServerImports = field(default_factory=ServerImports)
    libraries: Mapping[str, list[str]] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    commands: tuple[str, ...] = ()

    @classmethod
    def of(cls, target: Target) -> ServerProcess:
        if target.server is None:
            return cls()
        return cls(
            imports=target.find_imports(),
            libraries=find_libraries(target.server.processes.find_living()),
            environment=target.server.place.environment,
            commands=tuple(target.server.processes.list_commands()),
        )


def check_kernel_path(context: LevelContext) -> LevelResult:
    target, spec = context.target, context.spec
    rules = load_rules(target.kind)
    checks = Checks(KERNEL_PATH)
    if rules is None:
        checks.add("rules", Verdict.UNPROVEN, why_no_rules(spec))
        return checks.result()
    process = ServerProcess.of(target)
    exercise(target, spec)
    evidence = gather_evidence(target, spec, process)
    expectations = rules.find_expectations(evidence.device, evidence.capability, path=spec.path, expect=spec.expect)
    slots = explain_fused_moe(judge_slots(evidence, rules, expectations), process.imports)
    check_slots(slots, checks)
    check_plugin(evidence, checks)
    check_ledger(evidence, ",".join(spec.engine_flag("require")), checks)
    if target.server is not None:
        check_imports(process, rules, checks)
    if context.cross_check is not None:
        words = context.cross_check or "the profiler saw the launches of the ledger"
        checks.add("profiler", not context.cross_check, words)
    if evidence.kernels is not None:
        checks.facts["kernels"] = dict(evidence.kernels)
    return checks.result(slots.in_words(), slots=slots, ledger=evidence.ledger)


def why_no_rules(spec: LabSpec) -> str:
    if spec.url and spec.engine == "firesteel":
        return f"nothing shows which engine {spec.shown_url} is: name it (--engine) and add a profile (--trace)"
    return f"there are no rules for {spec.shown_engine}"


def exercise(target: Target, spec: LabSpec) -> None:
    """Sends prompts and decodes at two batch sizes, so that every kind of step has run."""
    with target.step("prompts and decoding for the kernel path"):
        for count in (1, 4):
            prompts = [random_prompt(spec.seed + number, 200) for number in range(count)]
            ask_together(lambda prompt: target.api.complete(prompt, max_tokens=8, temperature=0), prompts)


def gather_evidence(target: Target, spec: LabSpec, process: ServerProcess) -> PathEvidence:
    """Collects evidence. The machine is known only if the lab started the server: others may run anywhere."""
    machine, capability = ("", None) if target.server is None else describe_machine(find_device())
    return PathEvidence(
        log=() if target.server is None else read_log(target, target.server.log),
        ledger=target.read_ledger() if target.kind == "firesteel" else None,
        kernels=count_kernels(Path(spec.trace)) if spec.trace else None,
        environment=process.environment,
        commands=process.commands,
        versions=process.imports.versions,
        machine=machine,
        capability=capability,
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


def explain_fused_moe(slots: SlotTable, imports: ServerImports) -> SlotTable:
    """Names the missing FlashInfer kernels where experts ran on other ones."""
    moe = slots.slots[MOE]
    if imports.has_fused_moe is not False or moe.state is not SlotState.CONTRADICTED:
        return slots
    return slots.with_row(replace(moe, cure="; ".join(filter(None, (FUSED_MOE_CURE, moe.cure)))))


def check_slots(slots: SlotTable, checks: Checks) -> None:
    for row in slots.rows:
        if row.counts:
            checks.add(row.slot, row.verdict, row.in_words(), cure=row.cure)


def check_plugin(evidence: PathEvidence, checks: Checks) -> None:
    if faults := judge_ranks(evidence.log):
        checks.add("ranks", False, "; ".join(faults))


def check_ledger(evidence: PathEvidence, require: str, checks: Checks) -> None:
    """Checks requirements, ops outside of the slots, and that all machine code was read."""
    ledger = evidence.ledger
    if require and ledger is None:
        checks.add("requirements", Verdict.UNPROVEN, f"--require {require}: the server has no ledger")
    if ledger is None:
        return
    if require:
        faults = judge_requirements(require, ledger)
        checks.add("requirements", not faults, "; ".join(faults) or f"--require {require} is met")
    if evidence.device == GPU:
        references = list_references(ledger)
        words = f"plain torch ran for {', '.join(references)}" if references else "no op ran in plain torch"
        checks.add("ops", not references, words)
        check_proofs(ledger, checks)


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


def check_imports(process: ServerProcess, rules: EngineRules, checks: Checks) -> None:
    imports = process.imports
    if imports.is_silent and rules.packages:
        checks.add("imports", Verdict.UNPROVEN, f"{imports.interpreter} did not say what it imports")
        return
    faults = judge_imports(imports, process.libraries, rules.packages)
    shown = replace(imports, distributions={})  # EngineInfo has them
    checks.facts |= {"imports": to_json(shown), "libraries": dict(process.libraries)}
    checks.add("imports", not faults, "; ".join(faults) or imports.in_words())

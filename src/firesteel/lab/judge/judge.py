"""Judges files: the slots of the kernel path, the architectures of libraries, and what ended a server."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from firesteel.errors import UserError
from firesteel.lab.judge.crash_files import CrashBundle, diagnose_bundle, diagnose_end, read_bundle
from firesteel.lab.judge.evidence_file import EvidenceFile, Kind, find_evidence, read_json
from firesteel.lab.judge.library import LibraryVerdict, judge_library
from firesteel.lab.judge.recognise import ENGINES, recognise_engine
from firesteel.lab.path.engine_rules import EngineRules, load_rules
from firesteel.lab.path.evidence import CPU, GPU, PathEvidence
from firesteel.lab.path.judge import judge_slots
from firesteel.lab.path.ledger import ServerLedger, parse_ledger
from firesteel.lab.path.slots import SlotTable
from firesteel.lab.servers.diagnosis import Diagnosis
from firesteel.lab.trace import count_kernels
from firesteel.lab.verdict import Verdict, conclude

MAX_LINES = 1_000_000  # of all logs together
CAPABILITY = re.compile(r"Device \d+: .*compute capability (\d+)\.(\d+)")  # llama.cpp


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked about the files."""

    engine: str = ""  # empty: recognised
    machine: str = ""  # CPU, GPU or, if it is not known, empty
    capability: tuple[int, int] | None = None
    path: str = ""
    expect: str = ""

    @property
    def names_slots(self) -> bool:
        return bool(self.path or self.expect)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDiagnosis:
    file: str
    diagnosis: Diagnosis

    def as_dict(self) -> dict[str, Any]:
        return {"file": self.file, **self.diagnosis.as_dict()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    files: Mapping[str, str]  # what was read -> what it is
    engine: str = ""
    engine_by: str = ""  # the line that shows it, or that it was named
    slots: SlotTable | None = None  # None: nothing that was named shows slots, or the engine is not known
    has_path_evidence: bool = False
    libraries: tuple[LibraryVerdict, ...] = ()
    diagnoses: tuple[FileDiagnosis, ...] = ()

    @property
    def verdict(self) -> Verdict:
        parts = [Verdict.FAILED for _ in self.diagnoses] + [row.verdict for row in self.libraries]
        if self.has_path_evidence:
            parts.append(Verdict.UNPROVEN if self.slots is None else self.slots.verdict)
        return conclude(parts, needs_all=True)

    def as_dict(self) -> dict[str, Any]:
        table = {} if self.slots is None else self.slots.as_dict()
        return {
            "verdict": self.verdict.value,
            "engine": self.engine,
            "engine_by": self.engine_by,
            "path": table.get("path", ""),
            "slots": table.get("slots", {}),
            "libraries": [row.as_dict() for row in self.libraries],
            "diagnoses": [row.as_dict() for row in self.diagnoses],
            "files": dict(self.files),
        }


@dataclass(slots=True, kw_only=True)
class _Evidence:
    """What all files say together."""

    log: list[str] = field(default_factory=list)
    kernels: Counter[str] = field(default_factory=Counter)
    ledger: ServerLedger | None = None
    environment: dict[str, str] = field(default_factory=dict)
    diagnoses: list[FileDiagnosis] = field(default_factory=list)

    def add(self, file: EvidenceFile) -> None:
        if file.kind is Kind.LOG:
            with file.path.open(encoding="utf-8", errors="replace") as lines:
                log = [line.rstrip("\n") for line in islice(lines, MAX_LINES - len(self.log))]
            self.log += log
            self._diagnose(file.path, diagnose_end(log))
        elif file.kind is Kind.TRACE:
            self.kernels += count_kernels(file.path)
        elif file.kind is Kind.LEDGER:
            self.ledger = parse_ledger(read_json(file.path))
        elif file.kind is Kind.BUNDLE:
            self._add_bundle(file.path, read_bundle(file.path))

    def _add_bundle(self, folder: Path, bundle: CrashBundle) -> None:
        self.log += bundle.log
        self.environment |= bundle.environment
        if bundle.ledger:
            self.ledger = parse_ledger({"ran": list(bundle.ledger)})
        self._diagnose(folder, diagnose_bundle(bundle))

    def _diagnose(self, path: Path, diagnosis: Diagnosis | None) -> None:
        if diagnosis is not None:
            self.diagnoses.append(FileDiagnosis(file=str(path), diagnosis=diagnosis))


def judge_files(paths: Sequence[Path], question: Question) -> Judgement:
    """Judges all files as the evidence of one server."""
    files = [file for path in paths for file in find_evidence(path)]
    if not files:
        raise UserError(f"{', '.join(map(str, paths))} holds no log, trace, crash bundle or compiled library")
    evidence = _Evidence()
    for file in files:
        evidence.add(file)
    capability = question.capability or find_capability(evidence.log)
    libraries = [judge_library(file, capability) for file in files if file.kind is Kind.LIBRARY]
    has_path_evidence = any(file.kind is not Kind.LIBRARY for file in files)
    if question.names_slots and not has_path_evidence:
        raise UserError("--path and --expect are about a log, a trace or a ledger: name one, or leave them out")
    engine, shown_by = question.engine, "named by --engine"
    if not engine:
        engine, shown_by = _recognise(evidence)
    slots = _judge_slots(evidence, engine, question, capability) if has_path_evidence and engine else None
    return Judgement(
        files={str(file.path): file.kind.value for file in files},
        engine=engine if has_path_evidence else "",
        engine_by=shown_by if has_path_evidence else "",
        slots=slots,
        has_path_evidence=has_path_evidence,
        libraries=tuple(row for row in libraries if row is not None),
        diagnoses=tuple(evidence.diagnoses),
    )


def find_capability(log: Sequence[str]) -> tuple[int, int] | None:
    """Returns the compute capability that a log names."""
    match = next((match for line in log if (match := CAPABILITY.search(line))), None)
    return None if match is None else (int(match[1]), int(match[2]))


def find_rules(engine: str) -> EngineRules:
    rules = load_rules(engine)
    if rules is None:
        raise UserError(f"--engine {engine}: there are no rules for it; there are for {', '.join(sorted(ENGINES))}")
    return rules


def _recognise(evidence: _Evidence) -> tuple[str, str]:
    engine, line = recognise_engine(evidence.log, evidence.kernels)
    return ("firesteel", "its ledger") if not engine and evidence.ledger is not None else (engine, line)


def _judge_slots(
    evidence: _Evidence, engine: str, question: Question, capability: tuple[int, int] | None
) -> SlotTable:
    rules = find_rules(engine)
    machine = question.machine or (GPU if capability is not None else "")
    seen = PathEvidence(
        log=evidence.log,
        kernels=evidence.kernels or None,
        ledger=evidence.ledger if engine == "firesteel" else None,
        environment=evidence.environment,
        machine=machine,
        capability=None if machine == CPU else capability,
    )
    expectations = rules.find_expectations(seen.device, seen.capability, path=question.path, expect=question.expect)
    return judge_slots(seen, rules, expectations)

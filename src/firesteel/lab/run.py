"""Takes a server through levels and writes down what was found; knows no level's checks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import torch

from firesteel.config import hide_secrets
from firesteel.device import DeviceSpec, find_device
from firesteel.lab.bench.bench import BenchBroken
from firesteel.lab.client.api import Api
from firesteel.lab.client.wire import RequestFailed
from firesteel.lab.level import SERVERLESS, LevelResult, has_passed, judge_validity
from firesteel.lab.levels.benchmark import run_benchmark
from firesteel.lab.levels.correctness import check_correctness
from firesteel.lab.levels.matrix import run_matrix_level
from firesteel.lab.levels.path import check_path
from firesteel.lab.levels.regression import check_regression
from firesteel.lab.levels.smoke import check_smoke
from firesteel.lab.levels.stress import check_stress
from firesteel.lab.path.cross_check import cross_check, find_device_name
from firesteel.lab.report.report import write_report
from firesteel.lab.servers.commands import find_key, find_model, make_command, name_kind
from firesteel.lab.servers.supervisor import ServerCommand, ServerFailed, Stopped, Supervised, find_free_port
from firesteel.lab.servers.target import Target
from firesteel.lab.spec import Order
from firesteel.lab.spec_check import check_order
from firesteel.surroundings import look_around
from firesteel.version import find_version
from firesteel.whole import write_whole

SCHEMA = 1
RESULT = "result.json"


class Watcher(Protocol):
    """Who is told how the run goes."""

    def begin(self, level: str) -> None: ...

    def tell(self, words: str) -> None: ...

    def end(self, result: LevelResult) -> None: ...


@dataclass(slots=True, kw_only=True)
class Run:
    """A run under way; `result` is what result.json holds."""

    order: Order
    folder: Path
    watcher: Watcher
    device: DeviceSpec
    results: list[LevelResult] = field(default_factory=list)
    engine: dict[str, Any] = field(default_factory=dict)
    kernels: list[dict[str, Any]] = field(default_factory=list)  # rows of the ledger
    memory: dict[str, list[Any]] = field(default_factory=dict)
    shutdown: dict[str, Any] | None = None
    begun: float = field(default_factory=time.monotonic)  # the level under way
    cross_checked: str | None = None  # what a profiler found wrong; None where it was not asked

    def take(self) -> None:
        """All levels, whatever happens; a server that fails ends those that need it."""
        if self._can_cross_check():
            self.watcher.tell("the ledger against a profiler")
            self.cross_checked = cross_check(self.order.model, self.order.flags, self.folder)
        try:
            if with_server := [level for level in self.order.levels if level not in SERVERLESS]:
                with self.opened() as target:
                    for level in with_server:
                        self._take_level(level, target)
                    self.kernels = list((target.read_ledger() or {}).get("ran", ()))
                self._judge_shutdown()
        except ServerFailed as error:
            figures = {
                "diagnosis": error.diagnosis.as_dict(),
                "bundle": str(error.bundle) if error.bundle else None,
                **measured_before(error.__cause__),
            }
            self._fail_rest(str(error), figures)
            return
        except RequestFailed as error:  # of a server that ran already, at the first question
            self._fail_rest(f"{self.order.url}: {error}; is it running, and its address right?", {})
            return
        for level in [level for level in self.order.levels if level in SERVERLESS]:
            self._take_level(level, None)

    @contextmanager
    def opened(self) -> Iterator[Target]:
        """The server under test, ready."""
        order = self.order
        if order.url:
            kind = (
                "other" if order.engine == "firesteel" else name_kind(order.engine)
            )  # a ledger tells that it is ours
            yield self._greeted(Target(api=Api.of(order.url), kind=kind, folder=self.folder, model=order.model,
                                       tell=self.watcher.tell))  # fmt: skip
            return
        self.watcher.begin(order.levels[0])
        self.watcher.tell("starting the server")
        server = Supervised(self._command(), self.folder)
        try:
            server.wait_until_ready()
            yield self._greeted(Target(
                api=Api.of(server.command.url), kind=name_kind(order.engine), folder=self.folder, model=order.model,
                server=server, tell=self.watcher.tell,
            ))  # fmt: skip
        finally:
            self._note_server(server, server.stop())

    def result(self, seconds: float) -> dict[str, Any]:
        levels = judge_validity(self.results)
        unfinished = list(self.order.levels[len(levels) :])
        return {
            "schema": SCHEMA, "firesteel": find_version(), "seconds": seconds,
            "time_utc": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "passed": not unfinished and has_passed(levels), "unfinished": unfinished,
            "order": self.order.as_dict(),
            "levels": [level.as_dict() for level in levels], "reductions": self.order.reductions,
            "engine": self.engine, "kernels": self.kernels, "shutdown": self.shutdown, "memory": self.memory,
            "surroundings": asdict(look_around(self.device)),
        }  # fmt: skip

    def _command(self) -> ServerCommand:
        order = self.order
        command = make_command(
            order.engine, model=find_model(order.engine, order.model), port=find_free_port(), folder=self.folder,
            flags=order.flags, debug=order.debug,
        )  # fmt: skip
        return replace(command, ready_s=order.ready_s, grace_s=order.grace_s)

    def _key(self) -> str:
        return find_key(self.order.flags, engine=self.order.engine)

    def _greeted(self, target: Target) -> Target:
        target.api = replace(target.api, timeout_s=self.order.answer_s, api_key=self._key())
        target.greet()
        if not self.order.names_model:
            target.model = target.api.model
        if target.kind == "other" and target.read_ledger() is not None:
            target.kind = "firesteel"
        self.engine = {
            "name": self.order.url or self.order.shown_engine, "kind": target.kind, "url": target.api.url,
            "model": target.api.model, "max_context": target.max_context, "device": self.device.name,
        }  # fmt: skip
        return target

    def _take_level(self, level: str, target: Target | None) -> None:
        self.watcher.begin(level)
        self.begun = time.monotonic()
        try:
            found = self._without_server(level) if target is None else self._with_server(level, target)
        except RequestFailed as error:  # of a server that is not ours: there is no more to know
            found = LevelResult(level=level, passed=False, reason=str(error), figures=measured_before(error))
        self._note(replace(found, seconds=time.monotonic() - self.begun))

    def _with_server(self, level: str, target: Target) -> LevelResult:
        if level == "1.5":
            return check_path(target, self.order, self.cross_checked)
        if level == "4":
            return run_benchmark(target, self.order, self.device)
        return {"1": check_smoke, "2": check_correctness, "3": check_stress}[level](target, self.order)

    def _without_server(self, level: str) -> LevelResult:
        if level == "5":
            return check_regression(self.order, self.result(0.0), self.folder)
        return run_matrix_level(self.order, self.folder, self.watcher.tell, on_gpu=self.device.is_cuda)

    def _note(self, result: LevelResult) -> None:
        self.results.append(result)
        self.watcher.end(judge_validity(self.results)[-1])

    def _fail_rest(self, reason: str, figures: dict[str, Any]) -> None:
        """The level under way failed for this reason, and those after it for want of a server."""
        first, *rest = self.order.levels[len(self.results) :]
        seconds = time.monotonic() - self.begun
        self._note(LevelResult(level=first, passed=False, reason=reason, figures=figures, seconds=seconds))
        for level in rest:
            self._note(LevelResult(level=level, passed=False, was_run=False, reason="not run: the server is gone"))

    def _note_server(self, server: Supervised, stopped: Stopped) -> None:
        self.engine |= {
            "command": list(hide_secrets(server.command.words)), "startup_s": server.startup_s,
            "log": str(server.log), "peak_bytes": server.vigil.peak_bytes, "gpu_scope": server.vigil.gpu_scope,
        }  # fmt: skip
        samples = server.vigil.memory
        self.memory = {
            "seconds": [round(at, 2) for at, _, _ in samples], "host_bytes": [rss for _, rss, _ in samples],
            "gpu_bytes": [used for _, _, used in samples],
        }  # fmt: skip
        self.shutdown = {**stopped.as_dict(), "words": stopped.in_words()}

    def _judge_shutdown(self) -> None:
        """A server that had to be forced, or left something behind, has not passed the first of its levels."""
        if self.shutdown is not None and not self.shutdown["is_clean"]:
            first = self.results[0]
            reason = f"{first.reason}; but it did not stop cleanly: {self.shutdown['words']}"
            self.results[0] = replace(first, passed=False, reason=reason)
            self.watcher.end(self.results[0])

    def _can_cross_check(self) -> bool:
        order = self.order
        wants = not order.url and order.engine == "firesteel" and "1.5" in order.levels
        return wants and torch.cuda.is_available() and find_device_name(order.flags) != "cpu"


def measured_before(failure: BaseException | None) -> dict[str, Any]:
    """Workloads of a benchmark that a server did not live to the end of."""
    if isinstance(failure, BenchBroken) and failure.result.rows:
        return {"bench": failure.result.as_dict()}
    return {}


def run_lab(order: Order, folder: Path, watcher: Watcher) -> dict[str, Any]:
    """What result.json holds, which is written whatever happens to the server, or to this run."""
    check_order(order)
    folder.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    run = Run(order=order, folder=folder, watcher=watcher, device=find_device())
    try:
        run.take()
    finally:
        result = run.result(time.monotonic() - start)
        write_whole(folder / RESULT, result)
        write_report(result, folder)
    return result

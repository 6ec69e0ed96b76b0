"""Takes a server through the levels and writes the result."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import torch

from firesteel.atomic import write_atomically
from firesteel.config import hide_secrets
from firesteel.device import DeviceSpec, find_device
from firesteel.lab.bench.bench import BenchBroken
from firesteel.lab.bench.result import BenchResult
from firesteel.lab.client.api import Api
from firesteel.lab.client.wire import RequestFailed
from firesteel.lab.engine_facts import describe_engine
from firesteel.lab.engine_info import EngineInfo
from firesteel.lab.history import find_history
from firesteel.lab.level import KERNEL_PATH, Level
from firesteel.lab.level_result import LevelResult, judge_validity
from firesteel.lab.levels.context import LevelContext
from firesteel.lab.levels.table import RUN
from firesteel.lab.path.cross_check import cross_check, find_device_name
from firesteel.lab.path.ledger import OpCalls
from firesteel.lab.report.report import write_report
from firesteel.lab.result import RESULT, LabResult, MemoryTimeline
from firesteel.lab.servers.commands import find_key, find_kind, find_model, make_command
from firesteel.lab.servers.server_exit import ServerExit
from firesteel.lab.servers.supervisor import ServerCommand, ServerFailed, SupervisedServer, find_free_port
from firesteel.lab.servers.target import Target
from firesteel.lab.settle import settle_sinks
from firesteel.lab.spec import LabSpec
from firesteel.lab.spec_check import check_spec
from firesteel.lab.surroundings import StatedSurroundings
from firesteel.lab.verdict import Verdict
from firesteel.surroundings import GpuState, ask_gpu
from firesteel.version import find_version

SERVER_GONE = "not run: the server is gone"
GATE_FAILED = f"not run: the kernel path (level {KERNEL_PATH}) failed; --keep-going runs this level all the same"


class RunObserver(Protocol):
    """Receives the progress of a run."""

    def begin(self, level: Level) -> None: ...

    def progress(self, words: str) -> None: ...

    def end(self, result: LevelResult) -> None: ...


@dataclass(slots=True, kw_only=True)
class LabRun:
    """A run in progress; `result` returns what is known so far."""

    spec: LabSpec
    folder: Path
    observer: RunObserver
    device: DeviceSpec
    environment: Mapping[str, str] = field(default_factory=dict)  # of the server, beside what its engine needs
    results: list[LevelResult] = field(default_factory=list)
    engine: EngineInfo = field(default_factory=EngineInfo)
    kernels: tuple[OpCalls, ...] = ()
    memory: MemoryTimeline | None = None
    shutdown: ServerExit | None = None
    level_start: float = field(default_factory=time.monotonic)
    cross_check: str | None = None  # faults that a profiler found; None if it was not used

    def run_levels(self) -> None:
        """Runs all levels; a server that fails ends those that need it."""
        if self._can_cross_check():
            self.observer.progress("comparing the ledger with a profiler")
            self.cross_check = cross_check(self.spec.model, self.spec.flags, self.folder)
        try:
            if with_server := [level for level in self.spec.levels if level.needs_server]:
                with self.open_server() as target:
                    for level in with_server:
                        self._run_level(level, target)
                    ledger = target.read_ledger()
                    self.kernels = () if ledger is None else ledger.ran
                self._judge_shutdown()
        except ServerFailed as error:
            failure = LevelResult(
                level=self._next_level,
                verdict=Verdict.FAILED,
                reason=str(error),
                diagnosis=error.diagnosis,
                bundle=str(error.bundle) if error.bundle else None,
                bench=measured_before(error.__cause__),
            )
            self._fail_rest(failure)
            return
        except RequestFailed as error:  # the first request to a server that should be running already
            reason = f"{self.spec.shown_url}: {error}; check that it is running and its address is right"
            self._fail_rest(LevelResult(level=self._next_level, verdict=Verdict.FAILED, reason=reason))
            return
        for level in self.spec.levels:
            if not level.needs_server:
                self._run_level(level, None)

    @contextmanager
    def open_server(self) -> Iterator[Target]:
        """Yields the server under test, ready."""
        spec = self.spec
        self.engine = EngineInfo(name=spec.shown_url or spec.shown_engine, device=self.device.name)
        if spec.url:
            # A ledger shows that it is a firesteel server.
            kind = "other" if spec.engine == "firesteel" else find_kind(spec.engine)
            yield self._identify(self._make_target(spec.url, kind))
            return
        self.observer.begin(spec.levels[0])
        self.observer.progress("starting the server")
        server = SupervisedServer(self._command(), self.folder)
        try:
            server.wait_until_ready()
            yield self._identify(self._make_target(server.command.url, find_kind(spec.engine), server))
        finally:
            gpu = ask_gpu(self.device)  # while the server is there, if it did not fail
            self._record_server(server, server.stop(), gpu)

    def result(self, seconds: float) -> LabResult:
        levels = judge_validity(self.results)
        unfinished = self.spec.levels[len(levels) :]
        return LabResult(
            firesteel=find_version(),
            seconds=seconds,
            time_utc=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            unfinished=unfinished,
            spec=self.spec,
            levels=tuple(levels),
            reductions=tuple(self.spec.reductions),
            engine=self.engine,
            kernels=self.kernels,
            shutdown=self.shutdown,
            memory=self.memory,
            surroundings=StatedSurroundings.now(self.device),
        )

    @property
    def _next_level(self) -> Level:
        return self.spec.levels[len(self.results)]

    def _command(self) -> ServerCommand:
        spec = self.spec
        command = make_command(
            spec.engine,
            model=find_model(spec.engine, spec.model),
            port=find_free_port(),
            folder=self.folder,
            flags=spec.flags,
            debug=spec.debug,
        )
        environment = {**self.environment, **command.environment}
        return replace(command, ready_s=spec.ready_s, grace_s=spec.grace_s, environment=environment)

    def _make_target(self, url: str, kind: str, server: SupervisedServer | None = None) -> Target:
        key = find_key(self.spec.flags, engine=self.spec.engine)
        return Target(
            api=replace(Api.of(url, key), timeout_s=self.spec.answer_s),
            kind=kind,
            folder=self.folder,
            model=self.spec.model,
            server=server,
            on_progress=self.observer.progress,
        )

    def _identify(self, target: Target) -> Target:
        """Asks the server for its model, and whether it is a firesteel server."""
        target.identify()
        if not self.spec.names_model:
            target.model = target.api.model
        if target.kind == "other" and target.read_ledger() is not None:
            target.kind = "firesteel"
        self.observer.progress("asking for versions")
        name = self.engine.name
        if self.spec.url and target.kind != "other":
            name = f"{target.kind} at {name}"
        self.engine = describe_engine(target, name=name, device=self.device)
        return target

    def _run_level(self, level: Level, target: Target | None) -> None:
        if not self.spec.keep_going and any(done.level == KERNEL_PATH and done.failed for done in self.results):
            self._add(LevelResult(level=level, verdict=Verdict.UNPROVEN, reason=GATE_FAILED))
            return
        self.observer.begin(level)
        self.level_start = time.monotonic()
        context = LevelContext(
            spec=self.spec,
            folder=self.folder,
            device=self.device,
            on_progress=self.observer.progress,
            result_so_far=lambda: self.result(0.0),
            running=target,
            cross_check=self.cross_check,
        )
        try:
            result = RUN[level](context)
        except RequestFailed as error:  # the server is not ours, so there is no diagnosis
            failed = LevelResult(level=level, verdict=Verdict.FAILED, reason=str(error))
            result = replace(failed, bench=measured_before(error))
        self._add(replace(result, seconds=time.monotonic() - self.level_start))

    def _add(self, result: LevelResult) -> None:
        before = self.results
        self.results = settle_sinks([*before, result])
        for changed, earlier in zip(self.results, before, strict=False):
            if changed != earlier:
                self.observer.end(changed)
        self.observer.end(judge_validity(self.results)[-1])

    def _fail_rest(self, failure: LevelResult) -> None:
        """Adds the failure of the current level; those after it are not run."""
        self._add(replace(failure, seconds=time.monotonic() - self.level_start))
        for level in self.spec.levels[len(self.results) :]:
            self._add(LevelResult(level=level, verdict=Verdict.UNPROVEN, reason=SERVER_GONE))

    def _record_server(self, server: SupervisedServer, shutdown: ServerExit, gpu: GpuState) -> None:
        container = server.container
        if container is not None:  # known also of a server that never became ready
            self.engine = replace(
                self.engine,
                image=container.image,
                digest=container.digest or None,
                container=container.container,
            )
        self.engine = replace(
            self.engine,
            driver=gpu.driver,
            clocks_mhz=gpu.clocks_mhz,
            command=tuple(hide_secrets(server.command.words)),
            startup_s=server.startup_s,
            log=str(server.log),
            peak_bytes=server.monitor.peak_bytes,
            gpu_scope=server.monitor.gpu_scope,
        )
        self.memory = MemoryTimeline.of(server.monitor.memory)
        self.shutdown = shutdown

    def _judge_shutdown(self) -> None:
        """Fails the first level if the server had to be killed or left something behind."""
        if self.shutdown is not None and not self.shutdown.is_clean:
            first = self.results[0]
            reason = f"{first.reason}; but it did not stop cleanly: {self.shutdown.in_words()}"
            self.results[0] = replace(first, verdict=Verdict.FAILED, reason=reason)
            self.observer.end(self.results[0])

    def _can_cross_check(self) -> bool:
        spec = self.spec
        is_wanted = not spec.url and spec.engine == "firesteel" and KERNEL_PATH in spec.levels
        return is_wanted and torch.cuda.is_available() and find_device_name(spec.flags) != "cpu"


def measured_before(failure: BaseException | None) -> BenchResult | None:
    """Returns the workloads of a benchmark that were measured before the server was lost."""
    return failure.result if isinstance(failure, BenchBroken) and failure.result.rows else None


def run_lab(
    spec: LabSpec, folder: Path, observer: RunObserver, *, environment: Mapping[str, str] = MappingProxyType({})
) -> LabResult:
    """Runs the levels; result.json and the report are written whatever happens to the server or to this run."""
    check_spec(spec)
    folder.mkdir(parents=True, exist_ok=True)
    history = find_history(folder)
    start = time.monotonic()
    run = LabRun(spec=spec, folder=folder, observer=observer, device=find_device(), environment=environment)
    try:
        run.run_levels()
    finally:
        result = replace(run.result(time.monotonic() - start), history=history)
        write_atomically(folder / RESULT, result.as_dict())
        write_report(result, folder)
    return result

"""The settings of a lab run. Each is declared once: command line, checks, result.json and rerun follow from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from firesteel.config import hide_in_text, hide_secrets
from firesteel.errors import UserError
from firesteel.lab.bench.plan import BenchPlan
from firesteel.lab.codec import from_json
from firesteel.lab.level import (
    BENCHMARK,
    CORRECTNESS,
    LEVELS,
    MATRIX,
    MODES,
    STRESS,
    Level,
    list_levels,
    parse_levels,
    with_prerequisites,
)

DEFAULT_MODEL = "kindling"
MAX_CONCURRENCY = 512  # each request takes a thread and a connection of this process
HELP, IDENTIFIES, FLAGS = "help", "identifies", "flags"
GIVEN = "given"  # identifies a run only if it was given: earlier versions did not have it
NOT_GIVEN = (None, "", ())


class StressSize(NamedTuple):
    requests: int
    concurrency: int
    sequential: int

    def __str__(self) -> str:
        return f"{self.requests} requests at concurrency {self.concurrency} and {self.sequential} in a row"


FULL_STRESS = StressSize(requests=200, concurrency=8, sequential=100)
QUICK_STRESS = StressSize(requests=40, concurrency=4, sequential=20)


def setting(default: Any, help_text: str, *, identifies: bool | str = False) -> Any:
    """Declares a field. `identifies`: runs that differ in it have different baselines."""
    return field(default=default, metadata={HELP: help_text, IDENTIFIES: identifies})


@dataclass(frozen=True, slots=True, kw_only=True)
class LabSpec:
    mode: str = setting("all", f"set of levels: {', '.join(MODES)}")
    level: str = setting(
        "",
        "only these levels, such as 2,4, with those they need: "
        + ", ".join(f"{level} {level.title}" for level in LEVELS),
    )
    engine: str = setting(
        "firesteel",
        "firesteel, vllm, vllm+firesteel, sglang, llamacpp, a command line with {port} and optionally {model}, "
        "'docker run ...', or compose:FILE:SERVICE",
        identifies=True,
    )
    url: str = setting("", "address of a running server; no server is started", identifies=True)
    model: str = setting(DEFAULT_MODEL, "checkpoint folder, name in the local cache, or kindling", identifies=True)
    flags: tuple[str, ...] = setting((), "flags for the engine's command line", identifies=True)
    path: str = setting(
        "", "kernel path that must run, such as native-fp4 (default: any that is not a fallback)", identifies=True
    )
    expect: str = setting(
        "",
        "values of slots of the kernel path, such as moe=cutlass,dense=marlin,attention=flashinfer,graphs=on",
        identifies=GIVEN,
    )
    trace: str = setting("", "profile of the engine: PyTorch's JSON or nsys's SQLite export")
    gates: tuple[str, ...] = setting(
        (),
        "gate of the level 6 matrix, such as kv_dtype=auto,fp8 or env:NAME=1,2; repeatable (default: by device)",
    )
    gates_file: str = setting("", "TOML file of gates and named configurations for level 6")
    baseline: str = setting("", "earlier result for level 5 (default: the first run in --out)")
    slower: float = setting(3.0, "slowdown in percent that fails level 5")
    more_gb: float = setting(1.0, "growth of peak memory in GB that fails level 5")
    reference: str = setting(
        "", "reference for level 2 that firesteel lab reference recorded from a trusted server"
    )
    reference_url: str = setting("", "reference server for level 2 (default: compute locally, small models only)")
    quick: bool = setting(False, "take minutes on a CPU; the report lists what was reduced", identifies=True)
    debug: bool = setting(
        False, "blocking launches, C++ stacks, verbose logs: for finding faults, not for speed", identifies=True
    )
    seed: int = setting(7, "random seed of prompts and sampling", identifies=True)
    ready_s: float = setting(1800.0, "seconds until a server must be ready")
    answer_s: float = setting(600.0, "seconds until a request must be answered")
    grace_s: float = setting(45.0, "seconds from SIGTERM until a server is killed")
    allow_unjudged: bool = setting(False, "exit code 0, not 3, if nothing failed but not all could be judged")
    keep_going: bool = setting(False, "run the levels after a failed level 1.5 too; their results do not count")
    requests: int | None = setting(None, "requests of level 3 sent concurrently (default: 200; 40 with --quick)")
    concurrency: int | None = setting(None, "requests of level 3 in flight at once (default: 8; 4 with --quick)")
    sequential: int | None = setting(
        None, "requests of level 3 sent one after another (default: 100; 20 with --quick)"
    )
    pp: tuple[int, ...] = setting(
        (), "tokens per prompt in level 4 (default: 512,2048,8192; 128,512 with --quick)", identifies=GIVEN
    )
    tg: tuple[int, ...] = setting(
        (), "tokens per answer in level 4 (default: 32,128; 32 with --quick)", identifies=GIVEN
    )
    depths: tuple[int, ...] = setting(
        (),
        "tokens of context before the prompt in level 4 (default: 0,4096,8192,16384,32768; 0,1024 with --quick)",
        identifies=GIVEN,
    )
    streams: tuple[int, ...] = setting(
        (), "concurrent streams in level 4 (default: 1,2,4,8,16,32; 1,4 with --quick)", identifies=GIVEN
    )
    runs: int | None = setting(None, "counted runs of each workload in level 4 (default: 5)", identifies=GIVEN)
    warmups: int | None = setting(None, "uncounted runs before them (default: 1)", identifies=GIVEN)
    formats: str = setting(
        "",
        "formats that the server holds, such as moe=mxfp4,dense=q8_0,kv=fp8, for shares of the roofline "
        "(default: what server, flags and log state)",
    )
    temperature: float | None = setting(
        None, "sampling temperature of level 4, 0 to 2 (default: the server's)", identifies=GIVEN
    )

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise UserError(f"--mode {self.mode}: must be one of {', '.join(MODES)}")
        if self.level:
            parse_levels(self.level)
        if self.url and self.flags:
            raise UserError("flags for an engine cannot be combined with --url: that server already runs")
        if self.reference and self.reference_url:
            raise UserError("--reference and --reference-url name two references: leave one out")
        self._check_stress()
        from firesteel.lab.bench.formats import parse_formats  # imports torch, which help pages must not

        _ = self.bench_plan, parse_formats(self.formats)  # raise for impossible values

    @property
    def bench_plan(self) -> BenchPlan:
        """The workloads of level 4."""
        usual = BenchPlan.quick() if self.quick else BenchPlan()
        return usual.with_settings(
            pp=self.pp,
            tg=self.tg,
            depths=self.depths,
            concurrency=self.streams,
            runs=self.runs,
            warmups=self.warmups,
            temperature=self.temperature,
        )

    @property
    def names_model(self) -> bool:
        """True if the model was chosen; the default is not a choice if a running server is tested."""
        return not self.url or self.model != DEFAULT_MODEL

    @property
    def shown_engine(self) -> str:
        """The engine with secrets hidden: a command line may contain a key."""
        return hide_secrets((self.engine,))[0]

    @property
    def shown_url(self) -> str:
        """The address with secrets hidden: it may contain a password or a key."""
        return hide_in_text(self.url)

    @property
    def levels(self) -> tuple[Level, ...]:
        return with_prerequisites(self.named_levels) if self.level else list_levels(self.mode)

    @property
    def named_levels(self) -> tuple[Level, ...]:
        """The levels of --level, which a run must judge."""
        return parse_levels(self.level) if self.level else ()

    def engine_flag(self, name: str) -> list[str]:
        """Returns the values that the engine's flags give `--name`, as --name value or --name=value."""
        pairs = zip(self.flags, self.flags[1:], strict=False)
        joined = [word.partition("=")[2] for word in self.flags if word.startswith(f"--{name}=")]
        return [value for word, value in pairs if word == f"--{name}"] + joined

    @property
    def stress(self) -> StressSize:
        usual = QUICK_STRESS if self.quick else FULL_STRESS
        requests = self.requests or usual.requests
        return StressSize(
            requests=requests,
            concurrency=self.concurrency or min(usual.concurrency, requests),
            sequential=self.sequential or usual.sequential,
        )

    def _check_stress(self) -> None:
        for name in StressSize._fields:
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise UserError(f"--{name} {value}: must be a whole number from 1")
        requests, concurrency, _ = self.stress
        if concurrency > MAX_CONCURRENCY:
            raise UserError(f"--concurrency {self.concurrency}: the lab's client takes {MAX_CONCURRENCY} at most")
        if concurrency > requests:
            raise UserError(
                f"--concurrency {self.concurrency}: there are only {requests} requests: raise --requests"
            )

    @property
    def reductions(self) -> list[str]:
        """Lines for the report: what --quick leaves out, and what is smaller than usual."""
        plan = self.bench_plan
        is_less = bool(set(BenchPlan().workloads()) - set(plan.workloads()))
        lines = {STRESS: self._reduced_stress(), BENCHMARK: f"benchmark: {plan.in_words()}" if is_less else ""}
        if self.quick:
            lines |= {
                CORRECTNESS: "correctness: 8 texts and 6 continuations instead of all texts and 24",
                MATRIX: "matrix: 2 x 2 gates",
            }
        return [lines[level] for level in self.levels if lines.get(level)]

    def _reduced_stress(self) -> str:
        """Returns what the stress level leaves out; empty if it has its full size or more."""
        if self.quick:
            limit = "prompts of up to 2048 tokens instead of the model's limit"
            return f"stress: {self.stress} instead of {FULL_STRESS}, {limit}"
        is_less = any(count < full for count, full in zip(self.stress, FULL_STRESS, strict=True))
        return f"stress: {self.stress} instead of {FULL_STRESS}" if is_less else ""

    def as_dict(self) -> dict[str, Any]:
        """Returns the settings as result.json holds them, with secret values hidden."""
        shown = {"engine": self.shown_engine, "flags": hide_secrets(self.flags), "url": self.shown_url}
        return {**dataclasses.asdict(self), **shown, "reference_url": hide_in_text(self.reference_url)}


def parse_spec(content: Mapping[str, Any]) -> tuple[LabSpec, tuple[str, ...]]:
    """Returns the settings in a result, and the names of those that this version does not have."""
    known = {declared.name for declared in dataclasses.fields(LabSpec)}
    kept = {name: value for name, value in content.items() if name in known}
    return from_json(LabSpec, kept, "the settings in the result"), tuple(sorted(set(content) - known))


def to_words(spec: LabSpec) -> list[str]:
    """Returns the flags of `lab run` that give these settings; defaults and the engine's own flags are left out.

    Numbers are joined by commas; texts, which may contain commas, repeat their flag.
    """
    words = []
    for declared in dataclasses.fields(spec):
        value = getattr(spec, declared.name)
        if declared.name == FLAGS or value == declared.default:
            continue
        flag = f"--{declared.name.replace('_', '-')}"
        if value is True:
            words.append(flag)
        else:
            numbers = isinstance(value, tuple) and all(isinstance(item, int) for item in value)
            values = (",".join(map(str, value)),) if numbers else value if isinstance(value, tuple) else (value,)
            words += [word for item in values for word in (flag, str(item))]
    return words


def identity(spec: LabSpec) -> list[Any]:
    """Returns the values that decide whether two runs can be compared, secrets hidden."""
    content = spec.as_dict()
    kinds = {declared.name: declared.metadata[IDENTIFIES] for declared in dataclasses.fields(spec)}
    always = [content[name] for name, kind in kinds.items() if kind is True]
    given = [
        (name, content[name]) for name, kind in kinds.items() if kind == GIVEN and content[name] not in NOT_GIVEN
    ]
    return always + given

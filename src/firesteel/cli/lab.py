"""Verbs that examine the machine and the kernels: doctor, roofline, prove, verify, bench, spark-report."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from firesteel.cli.app import app, show_error
from firesteel.cli.progress import progress_bar, running
from firesteel.cli.tables import (
    bench_table,
    check_table,
    cost_table,
    finding_table,
    prediction_table,
    proof_table,
    say,
    show,
)
from firesteel.config import resolve
from firesteel.device import DeviceSpec, find_device
from firesteel.doctor import Status, examine
from firesteel.errors import KernelError, UserError
from firesteel.hub import find_checkpoint
from firesteel.kernels import ALL_OPS, find_op
from firesteel.kernels.activation import ACTIVATIONS
from firesteel.kernels.compile_all import prove_all
from firesteel.kernels.op import Op
from firesteel.kernels.prove import check, find_target
from firesteel.kernels.requirement import Requirement, parse_requirements
from firesteel.kernels.verify import Status as CheckStatus
from firesteel.measure import bench as benchmark
from firesteel.measure import roofline
from firesteel.measure.correctness import check_ops
from firesteel.model.spec import PRESETS, ModelSpec, read_spec
from firesteel.plot import check_libraries, plot_ops
from firesteel.spark_report import make_report

DEFAULT_TARGET = "sm_121a"
DEFAULT_M = {True: "1,2,...,8192", False: "1"}  # by is_cuda
MOST_M = 16384
bench = typer.Typer(
    no_args_is_help=True, help="Time ops against a ceiling measured in the same run, or the engine."
)
app.add_typer(bench, name="bench")

AsJson = Annotated[bool, typer.Option("--json", help="print JSON instead of a table")]
Ops = Annotated[list[str] | None, typer.Option("--op", help="only this op; may be repeated")]
Required = Annotated[
    list[str] | None,
    typer.Option("--require", metavar="PATTERN", help="OP=IMPLEMENTATION, then :VARIANT and @VERDICT if wanted"),
]
Model = Annotated[str, typer.Option(help="gpt-oss-120b, gpt-oss-20b or a checkpoint")]


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """What this machine has, what would be used and why; exit code 1 if something is wrong."""
    findings = examine()
    if as_json:
        _print([finding.as_dict() for finding in findings])
    else:
        show(finding_table(findings))
    if any(finding.status is Status.FAIL for finding in findings):
        raise typer.Exit(1)


@app.command(name="roofline")
def show_roofline(
    gpu: Annotated[str, typer.Option(help=", ".join(roofline.GPUS))],
    model: Model = "gpt-oss-120b",
    dense: Annotated[str, typer.Option(help="of qkv, o and lm_head: " + ", ".join(roofline.ROW_BYTES))] = "bf16",
    kv: Annotated[str, typer.Option(help=", ".join(roofline.KV_BYTES))] = "bf16",
    context: Annotated[int, typer.Option(help="tokens each request holds in the cache")] = 0,
    batch: Annotated[int, typer.Option(help="requests decoded together")] = 1,
    experts: Annotated[
        float | None, typer.Option(help="distinct ones a layer; independent routing if not given")
    ] = None,
    share: Annotated[float, typer.Option(help="of the ceiling, for the prediction")] = 0.85,
    draft: Annotated[int | None, typer.Option(help="drafted tokens: adds the break-even of speculation")] = None,
    as_json: AsJson = False,
) -> None:
    """The bytes and operations of one decoding step, and the speed a GPU's memory allows."""
    spec = _spec(model)
    step = roofline.Step(dense=dense, kv=kv, context=context, requests=batch, distinct_experts=experts)
    cost, chosen = roofline.step_cost(spec, step), roofline.find_gpu(gpu)
    predictions = roofline.predict(cost, chosen, share)
    speculation = None if draft is None else roofline.speculate(spec, step, draft)
    if as_json:
        found = {"model": model, "gpu": chosen.title, **cost.as_dict()}
        found["predictions"] = [prediction.as_dict() for prediction in predictions]
        found["speculation"] = None if speculation is None else speculation.as_dict()
        _print(found)
        return
    show(cost_table(cost, f"{model}, one step", predictions[-1].gb_s))
    show(prediction_table(predictions, chosen.title))
    if speculation is not None:
        show(Text(speculation.in_words()))


@app.command()
def prove(
    op: Ops = None,
    target: Annotated[
        list[str] | None, typer.Option(help="sm_90a, sm_121a, ...; may be repeated; this GPU's, or sm_121a")
    ] = None,
    require: Required = None,
    as_json: AsJson = False,
) -> None:
    """Compile every kernel variant, for GPUs that need not be here, and say which instructions it became."""
    required = [Requirement.parse(text) for text in require or []]
    ops, here = _ops(op, *(one.op for one in required)), _target_here()
    targets = list(dict.fromkeys(target or [here or DEFAULT_TARGET]))
    with progress_bar("compiling") as report_progress:
        proofs, failures = prove_all(ops, targets, progress=report_progress)
    if as_json:
        _print([proof.as_dict() for proof in proofs])
    else:
        for one in targets:
            show(proof_table([proof for proof in proofs if proof.target == one], one, is_here=one == here))
    for failure in failures:
        show_error(f"{failure.op} {failure.variant} does not compile for {failure.target}: {failure.reason}")
    with _exit_code_one():
        for one in targets:
            check([proof for proof in proofs if proof.target == one], required)
    if failures:
        raise typer.Exit(1)


@app.command()
def verify(
    op: Ops = None,
    quick: Annotated[bool, typer.Option("--quick", help="one sample an implementation, the smallest")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N")] = "auto",
    model: Model = "gpt-oss-120b",
    as_json: AsJson = False,
) -> None:
    """Hold every implementation to its reference on this machine; exit code 1 if one fails."""
    spec, ops, found = _spec(model), _ops(op), find_device(device)
    with progress_bar("verifying") as report_progress:
        checks = list(check_ops(ops, found, spec, quick=quick, progress=report_progress))
    counts = Counter(one.status for one in checks)
    if as_json:
        _print([one.as_dict() for one in checks])
    else:
        show(check_table(checks, found.name))
        show(Text(", ".join(f"{counts[status]} {status.value}" for status in CheckStatus)))
    if not counts[CheckStatus.PASSED] and not counts[CheckStatus.FAILED]:
        say("nothing ran, so nothing is verified on this machine")
    if counts[CheckStatus.FAILED]:
        raise typer.Exit(1)


@bench.command(name="ops")
def bench_ops(
    op: Ops = None,
    m: Annotated[str | None, typer.Option(help="tokens, as 1,64 or 1,2,...,8192 (doubling)")] = None,
    implementation: Annotated[
        list[str] | None, typer.Option(help="as triton or triton:gemm; may be repeated; all but a GPU's reference")
    ] = None,
    activation: Annotated[
        list[str] | None, typer.Option(help=f"{', '.join(ACTIVATIONS)}; may be repeated; bf16")
    ] = None,
    require: Required = None,
    out: Annotated[Path, typer.Option(help="folder for records and the plot")] = Path("firesteel-bench"),
    plot: Annotated[bool, typer.Option(help="draw ops.html and ops.png")] = True,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N")] = "auto",
    model: Model = "gpt-oss-120b",
    as_json: AsJson = False,
) -> None:
    """Time each implementation at a model's shapes with a cold cache: GB/s, TFLOP/s and share of the ceiling."""
    found, required = find_device(device), parse_requirements(",".join(require or []))
    plan = benchmark.Plan(
        spec=_spec(model), ops=_ops(op, *required), ms=parse_m(m or DEFAULT_M[found.is_cuda]),
        activations=_activations(activation), implementations=tuple(implementation or ()),
    )  # fmt: skip
    if plot:
        check_libraries()
    benchmark.check_implementations(plan, found)
    with _exit_code_one():
        benchmark.check_required(plan, found, required)
    outcomes, ceilings = _measure(plan, found, out)
    if as_json:
        _print([one.as_dict() for one in outcomes])
    else:
        show(bench_table(outcomes, ceilings, found.name))
    say(f"records are in {out}")
    if plot and any(one.figures for one in outcomes):
        page, picture = plot_ops(outcomes, out, f"{model} ops on {found.name}")
        say(f"plot: {page} and {picture}")
    if any(one.failed for one in outcomes):
        raise typer.Exit(1)


def _measure(
    plan: benchmark.Plan, device: DeviceSpec, out: Path
) -> tuple[list[benchmark.Outcome], benchmark.Ceilings]:
    """Each record is saved as soon as it is made."""
    say(f"measuring the ceilings of {device.name}")
    ceilings = benchmark.measure_ceilings(device)
    records = ceilings.records(device, resolve().config)
    for record in records:
        record.save(out)
    outcomes = []
    with progress_bar("measuring") as report_progress:
        for outcome in benchmark.bench_ops(plan, device, ceilings, progress=report_progress):
            outcomes.append(outcome)
            if outcome.figures is not None:
                outcome.record(device, records[0]).save(out)
    return outcomes, ceilings


@app.command(name="spark-report")
def spark_report(
    out: Annotated[Path, typer.Option(help="the zip to write")] = Path("firesteel-spark-report.zip"),
    quick: Annotated[bool, typer.Option("--quick", help="few samples and sizes")] = False,
) -> None:
    """Doctor, verify, prove and bench on this machine, packed into one file to send back."""
    device = find_device()
    if not device.is_cuda:
        say("no GPU was found: the report will hold what the CPU can do, and no kernel will run")
    with running("reporting"):
        reports = make_report(device, out, quick=quick, tell=say)
    say(f"wrote {out}; look into it before you send it: it holds summary.md, report.json, records and plots")
    if any(one.exit_code for one in reports):
        raise typer.Exit(1)


def parse_m(text: str) -> tuple[int, ...]:
    """Of "1,64,1000" or "1,2,...,8192": dots double the number before them until the one after."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    found: list[int] = []
    for number, word in enumerate(words):
        if word == "..." and found and number + 1 < len(words) and words[number + 1].isdigit():
            while 2 * found[-1] < int(words[number + 1]):
                found.append(2 * found[-1])
        elif re.fullmatch(r"[0-9]+", word) and 1 <= int(word) <= MOST_M:
            found.append(int(word))
        else:
            raise UserError(f"--m {text}: wants numbers from 1 to {MOST_M}, as 1,64 or 1,2,...,8192, not {word!r}")
    if not found:
        raise UserError("--m is empty: name at least one number of tokens")
    return tuple(dict.fromkeys(found))


def _activations(given: list[str] | None) -> tuple[str, ...]:
    for one in given or []:
        if one not in ACTIVATIONS:
            raise UserError(f"--activation {one}: must be one of {', '.join(ACTIVATIONS)}")
    return tuple(dict.fromkeys(given or ["bf16"]))


def _ops(names: list[str] | None, *required: str) -> tuple[Op[Any, Any], ...]:
    """Those named, and those required; all if none is named."""
    wanted = {find_op(name).name for name in (*(names or ()), *required)}
    return tuple(op for op in ALL_OPS if not names or op.name in wanted)


def _spec(model: str) -> ModelSpec:
    return PRESETS[model] if model in PRESETS else read_spec(find_checkpoint(model))


def _target_here() -> str | None:
    capability = find_device().capability
    return None if capability is None else find_target(capability)


@contextmanager
def _exit_code_one() -> Iterator[None]:
    """A requirement that is not met is no misuse: its error ends with 1, not 2."""
    try:
        yield
    except KernelError as error:
        show_error(error)
        raise typer.Exit(1) from error


def _print(value: object) -> None:
    print(json.dumps(value, indent=2))

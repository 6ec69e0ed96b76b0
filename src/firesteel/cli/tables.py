"""Tables for the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from firesteel.config.presets import PRESETS

if TYPE_CHECKING:
    from firesteel.calibrate import Calibration
    from firesteel.defaults import ServeDefaults
    from firesteel.doctor import Finding
    from firesteel.engine.statistics import Statistics
    from firesteel.eval import EvalReport
    from firesteel.kernels.ledger import Launch
    from firesteel.kernels.proof.library import LibraryKernel
    from firesteel.kernels.proof.prove import Proof
    from firesteel.kernels.proof.verify import Check
    from firesteel.llm import LLM
    from firesteel.measure.ops.outcome import Ceilings, OpOutcome
    from firesteel.measure.roofline import roofline


PIPE_WIDTH = 1000  # columns of a table that goes to a file or a pipe, so that rows are not folded
VERDICT_COLOURS = {"native-fp4": "bold green", "fp8": "green", "int8": "green", "bf16": "yellow", "none": "dim"}
STATUS_COLOURS = {"passed": "green", "FAILED": "bold red", "refused": "yellow", "not run": "yellow"}
SM12X = ("sm_120a", "sm_121a")  # compiled and proven, not yet run


def report_table(report: EvalReport) -> Table:
    settings = report.settings
    chosen = ", ".join(sorted(set(settings["kernels"].values())))
    caption = (
        f"perplexity {report.perplexity:.3f} over {report.perplexity_tokens} tokens; {report.seconds:.0f} s; "
        f"{settings['model']} on {settings['device']} in {settings['dtype']}, kernels: {chosen}, "
        f"{settings['activation']} activations, MXFP4 layers: {', '.join(['moe', *settings['mxfp4_layers']])}, "
        f"sinks {'on' if settings['sinks'] else 'off'}, keys and values in {_stored(settings)}"
    )
    table = Table("family", "items", "right", "exact match", title="held-out evaluation", caption=caption)
    for score in (*report.scores, report.overall):
        if score.family == "all":
            table.add_section()
        table.add_row(score.family, str(score.items), str(score.right), f"{100 * score.share:.1f} %")
    return table


def choice_table(defaults: ServeDefaults, device: str) -> Table:
    """Builds the table of defaults that were chosen for a GPU."""
    table = new_table("setting", "value", "why", "cost in quality", "to override")
    table.title = f"defaults for {device}: preset {defaults.preset} (--preset NAME; {', '.join(PRESETS)})"
    for choice in defaults.choices:
        words = (choice.setting, str(choice.value), choice.why, choice.quality, choice.override)
        table.add_row(*map(Text, words))
    return table


def _stored(settings: Mapping[str, Any]) -> str:
    """Describes the format of keys and values; only fp8 has scales and clips."""
    if settings["kv_dtype"] == "fp8":
        scales = " with scales" if settings["kv_scales"] else ""
        return f"fp8{scales}, {settings['saturated_values']} of them clipped"
    return str(settings["dtype"] if settings["kv_dtype"] == "auto" else settings["kv_dtype"]).removeprefix("torch.")


def cost_table(cost: roofline.StepCost, title: str, gb_s: float) -> Table:
    from firesteel.measure.roofline import roofline

    step = cost.step
    table = new_table("op", "part", "calls", "MB", "share", "GFLOP", "FLOP/byte", f"us at {gb_s:.0f} GB/s")
    table.title = title
    table.caption = (
        f"dense {step.dense}, experts mxfp4, kv {step.kv}, context {step.context}, batch {step.requests}: "
        f"{cost.distinct_experts:.1f} distinct experts per layer"
    )
    total = roofline.OpCost(
        op="all", part="", calls=sum(op.calls for op in cost.ops), vector_bytes=cost.bytes, flops=cost.flops
    )
    for op in (*cost.ops, total):
        if op is total:
            table.add_section()
        table.add_row(
            op.op,
            op.part,
            str(op.calls),
            f"{op.bytes / 1e6:.1f}",
            f"{100 * op.bytes / cost.bytes:.1f} %",
            f"{op.flops / 1e9:.2f}",
            f"{op.flops / op.bytes:.1f}",
            f"{op.bytes / gb_s / 1e3:.1f}",
        )
    return table


def prediction_table(predictions: list[roofline.Prediction], title: str) -> Table:
    table = new_table("bandwidth", "GB/s", "ms per step", "ceiling tok/s", "at share", "tok/s", "status")
    table.title = f"{title}, all requests together"
    for prediction in predictions:
        table.add_row(
            prediction.bandwidth,
            f"{prediction.gb_s:.0f}",
            f"{prediction.step_ms:.3f}",
            f"{prediction.ceiling_tok_s:.1f}",
            f"{100 * prediction.share:.0f} %",
            f"{prediction.predicted_tok_s:.1f}",
            prediction.status,
        )
    return table


def ledger_table(llm: LLM) -> Table:
    """Builds the table of ops that ran; the columns `clipped` and `kernels` are left out if they would be empty."""
    entries = sorted(llm.ledger().entries.items(), key=lambda item: -item[1].seconds)
    headings = ["op", "implementation", "activations", "calls", "ms total", "us per call"]
    counts, launches = (
        any(entry.clipped is not None for _, entry in entries),
        any(entry.launches for _, entry in entries),
    )
    table = new_table(*headings, *["clipped"] * counts, *["kernels"] * launches)
    table.title = f"what ran on {llm.device.name}"
    for ran, entry in entries:
        each_us = entry.seconds / entry.calls * 1e6
        kernels = "\n".join(f"{count} x {_in_words(launch)}" for launch, count in entry.launches.items())
        clipped = "" if entry.clipped is None else str(entry.clipped)
        row = (*ran, str(entry.calls), f"{entry.seconds * 1e3:.1f}", f"{each_us:.0f}")
        table.add_row(*row, *[clipped] * counts, *[Text(kernels)] * launches)
    return table


def draft_line(kind: str, statistics: Statistics) -> str:
    """Returns what the drafts of a run came to."""
    if not statistics.draft_tokens:
        return f"drafts by {kind}: none"
    accepted, drafted = statistics.accepted_tokens, statistics.draft_tokens
    positions = ", ".join(f"{100 * count / statistics.drafts:.0f}" for count in statistics.accepted_at)
    return (
        f"drafts by {kind}: {accepted} of {drafted} tokens accepted (by position {positions} %), "
        f"{1 + accepted / statistics.drafts:.2f} tokens per verified step"
    )


def _in_words(launch: Launch) -> str:
    from firesteel.kernels.op.verdict import judge_compiled

    verdict = "" if launch.compiled is None else judge_compiled(launch.compiled)
    return " ".join(filter(None, (launch.kernel, launch.tile, launch.artefact[:8], verdict)))


def calibration_table(calibration: Calibration) -> Table:
    from firesteel.calibrate import MARGIN

    table = new_table("layer", "largest key", "largest value", "key scale", "value scale")
    table.title = f"keys and values over {calibration.num_tokens} tokens"
    table.caption = f"scales: powers of two that bring {MARGIN:g} times the largest into the range of FP8"
    largest, scales = (calibration.largest_keys, calibration.largest_values), calibration.scales
    rows = zip(*largest, scales.keys, scales.values, strict=True)
    for number, (key, value, *divisors) in enumerate(rows):
        table.add_row(str(number), f"{key:.4g}", f"{value:.4g}", *(f"{divisor:g}" for divisor in divisors))
    return table


def finding_table(findings: Sequence[Finding]) -> Table:
    from firesteel.doctor import FindingStatus

    colours = {FindingStatus.OK: "green", FindingStatus.NOTE: "yellow", FindingStatus.FAIL: "bold red"}
    table = new_table("check", "status", "found", "cure")
    for finding in findings:
        mark = Text(finding.status.value, colours[finding.status])
        table.add_row(finding.check, mark, Text(finding.found), Text(finding.cure))
    return table


def proof_table(proofs: Sequence[Proof], target: str, *, is_here: bool) -> Table:
    """Builds the table of proofs; `is_here` means that the target is this machine's GPU."""
    headings = ("op", "variant", "verdict", "matrix PTX", "matrix SASS", "registers", "spills", "shared memory")
    table = new_table(*headings)
    table.title = f"{target}: compiled and proven, not yet run" if target in SM12X and not is_here else target
    table.caption = f"{len(proofs)} compiled by {', '.join(sorted({proof.compiler for proof in proofs}))}"
    for proof in proofs:
        sass = "not decoded" if proof.sass is None else str(sum(proof.sass.values()))
        table.add_row(
            proof.op,
            Text(proof.variant),
            _verdict(proof),
            str(sum(proof.ptx.values())),
            sass,
            str(proof.registers),
            Text(str(proof.spills), "bold red" if proof.spills else ""),
            _shared_memory(proof),
        )
    return table


def library_table(kernels: Sequence[LibraryKernel], path: Path) -> Table:
    """Builds the table of a compiled library; kernels that differ in nothing shown share a row."""
    rows = Counter(
        (
            kernel.short_name,
            kernel.target,
            kernel.verdict,
            sum(kernel.sass.values()),
            kernel.registers,
            kernel.spills,
        )
        for kernel in kernels
    )
    table = new_table("kernel", "target", "verdict", "matrix SASS", "registers", "spills", "kernels")
    table.title = f"{len(kernels)} kernels in {path}"
    for (name, target, verdict, matrix, registers, spills), count in sorted(rows.items()):
        marked = Text(str(spills), "bold red" if spills else "")
        colour = VERDICT_COLOURS[verdict]
        table.add_row(Text(name), target, Text(verdict, colour), str(matrix), str(registers), marked, str(count))
    return table


def _verdict(proof: Proof) -> Text:
    """Marks a fallback: SM12x multiplies rounded activations natively, so 16-bit products are one there."""
    is_rounded = set(proof.variant.split()) & {"mxfp8", "mxfp4"}
    if proof.target in SM12X and is_rounded and proof.verdict == "bf16":
        return Text("bf16, a fallback", "bold red")
    return Text(proof.verdict, VERDICT_COLOURS[proof.verdict])


def _shared_memory(proof: Proof) -> Text:
    text = f"{proof.shared_bytes:,} of {proof.shared_limit_bytes:,}"
    return Text(text) if proof.fits else Text(f"{text}: does not fit", "bold red")


def check_table(checks: Sequence[Check], device_name: str) -> Table:
    table = new_table("op", "implementation", "sample", "status", "worst error", "rms error", "why")
    table.title = f"every implementation against its reference on {device_name}"
    for check in checks:
        worst, rms = ("" if error is None else f"{error:.2g}" for error in (check.worst, check.rms))
        status = Text(check.status.value, STATUS_COLOURS[check.status.value])
        table.add_row(check.op, check.implementation, Text(check.sample), status, worst, rms, Text(check.why))
    return table


def bench_table(outcomes: Sequence[OpOutcome], ceilings: Ceilings, device_name: str) -> Table:
    headings = ("op", "part", "M", "implementation", "activations", "us", "GB/s", "TFLOP/s", "share", "of")
    has_plans = any(outcome.figures is not None and outcome.figures.plan_s is not None for outcome in outcomes)
    table = new_table(*headings, "first call, s", *["host plan, us"] * has_plans)
    table.title = f"ops at the model's shapes on {device_name}, cold cache"
    table.caption = (
        f"share of the ceilings measured in this run: read {ceilings.read.rate:.0f} GB/s, "
        f"matrix {ceilings.matrix.rate:.1f} TFLOP/s in {ceilings.matrix_type}; first calls may compile"
        + "; a host plan is not in us"
        * has_plans
    )
    for outcome in outcomes:
        names = (outcome.op, Text(outcome.part), str(outcome.m), outcome.implementation, outcome.activation)
        if outcome.figures is None:
            table.add_row(*names, *[""] * 4, Text(outcome.why, "yellow"))
            continue
        figures = outcome.figures
        table.add_row(
            *names,
            f"{figures.median_s * 1e6:.1f}",
            f"{figures.gb_s:.0f}",
            f"{figures.tflop_s:.2f}",
            f"{100 * figures.share:.1f} %",
            figures.bound,
            f"{figures.first_call_s:.2f}",
            *["" if figures.plan_s is None else f"{figures.plan_s * 1e6:.0f}"] * has_plans,
        )
    return table


def new_table(*headings: str) -> Table:
    return Table(*(Column(heading, overflow="fold") for heading in headings))


def show(table: Table | Text) -> None:
    """Prints a table, folded to the width of the terminal; nothing is cut off."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPE_WIDTH)
    console.print(table)


def say(text: str) -> None:
    """Prints a message on stderr; only results go to stdout."""
    Console(stderr=True).print(Text(text), soft_wrap=True)

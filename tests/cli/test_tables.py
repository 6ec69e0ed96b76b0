"""Tables: the text of their rows, in which nothing is taken for markup."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from firesteel.cli.tables import bench_table, draft_line, ledger_table, proof_table, report_table
from firesteel.engine.statistics import Statistics
from firesteel.eval import EvalReport, Score
from firesteel.kernels.ledger import Entry, Launch, Ledger, Ran
from firesteel.kernels.proof.prove import Proof
from firesteel.measure.ops.outcome import Ceilings, Figures, OpOutcome
from firesteel.measure.roofline.ceiling import Ceiling
from firesteel.measure.timing import Timing

PROOF = Proof(
    op="moe_matmul",
    variant="triton:gemm [x]",
    target="sm_121a",
    verdict="native-fp4",
    ptx={"mma": 8, "other": 4},
    sass=None,
    registers=128,
    spills=3,
    shared_bytes=101_377,
    compiler="triton 3.9.0",
)


def rows(table):
    console = Console(width=400)
    with console.capture() as captured:
        console.print(table)
    lines = captured.get().splitlines()
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if "│" in line], lines


def test_ledger_shows_every_kernel_and_the_verdict_of_compiled_ones(monkeypatch):
    monkeypatch.setattr("firesteel.kernels.op.verdict.judge_compiled", lambda compiled: f"verdict of {compiled}")
    ledger = Ledger()
    launches = {
        Launch("fc1", "64x128[x]", "0123456789abcdef", "a cubin"): 6,
        Launch("attend", "", "interpreted", None): 2,
    }
    ledger.entries[Ran("moe_matmul", "triton:gemm", "mxfp8")] = Entry(calls=6, seconds=0.003, launches=launches)
    llm = SimpleNamespace(ledger=lambda: ledger, device=SimpleNamespace(name="a GPU"))
    cells, lines = rows(ledger_table(llm))
    kernels = "6 x fc1 64x128[x] 01234567 verdict of a cubin"
    assert cells[0] == ["moe_matmul", "triton:gemm", "mxfp8", "6", "3.0", "500", kernels]
    assert cells[1][-1] == "2 x attend interpre" and "what ran on a GPU" in lines[0]


def test_ledger_shows_clipped_values_if_they_are_counted():
    ledger = Ledger()
    counters = [torch.tensor([5]), torch.tensor([1 << 40])]
    ledger.entries[Ran("rope_kv_write", "triton")] = Entry(calls=1, counters=counters)
    llm = SimpleNamespace(ledger=lambda: ledger, device=SimpleNamespace(name="a GPU"))
    assert rows(ledger_table(llm))[0][0][6:] == [str((1 << 40) + 5)]


def test_drafts_are_one_line_of_counts_shares_and_length():
    drafted = Statistics(drafts=10, draft_tokens=30, accepted_tokens=15, accepted_at=[8, 5, 2])
    line = "drafts by ngram: 15 of 30 tokens accepted (by position 80, 50, 20 %), 2.50 tokens per verified step"
    assert draft_line("ngram", drafted) == line
    assert draft_line("eagle3", Statistics()) == "drafts by eagle3: none"


@pytest.mark.parametrize(
    ("stored", "scales", "shown"),
    [
        ("fp8", "", "keys and values in fp8, 7 of them clipped"),
        ("fp8", "a.json", "keys and values in fp8 with scales, 7 of them clipped"),
        ("auto", "", "keys and values in float32"),
        ("bf16", "", "keys and values in bf16"),
    ],
)
def test_evaluation_shows_perplexity_and_the_format_of_keys_and_values(stored, scales, shown):
    settings = {
        "model": "m",
        "device": "CPU",
        "dtype": "torch.float32",
        "sinks": True,
        "activation": "bf16",
        "mxfp4_layers": [],
        "kernels": {},
        "kv_dtype": stored,
        "kv_scales": scales,
        "saturated_values": 7,
    }
    report = EvalReport(
        scores=[Score(family="a", items=2, right=1)],
        perplexity=1.5,
        perplexity_tokens=9,
        seconds=1.0,
        settings=settings,
    )
    caption = report_table(report).caption
    assert caption.startswith("perplexity 1.500 over 9 tokens") and caption.endswith(shown)


def test_proof_shows_counts_spills_and_kernels_that_do_not_fit():
    cells, lines = rows(proof_table([PROOF], "sm_121a", is_here=False))
    assert cells == [
        [
            "moe_matmul",
            "triton:gemm [x]",
            "native-fp4",
            "12",
            "not decoded",
            "128",
            "3",
            "101,377 of 101,376: does not fit",
        ],
    ]
    assert "sm_121a: compiled and proven, not yet run" in lines[0] and "triton 3.9.0" in lines[-1]


@pytest.mark.parametrize(
    ("target", "variant", "verdict", "shown"),
    [
        ("sm_121a", "triton:gemm mxfp8 fc1", "bf16", "bf16, a fallback"),
        ("sm_121a", "triton:gemm bf16 fc1", "bf16", "bf16"),
        ("sm_90a", "triton:gemm mxfp8 fc1", "bf16", "bf16"),
        ("sm_120a", "triton:gemm mxfp4 fc2", "native-fp4", "native-fp4"),
    ],
)
def test_rounded_activations_that_became_bf16_on_sm12x_are_a_fallback(target, variant, verdict, shown):
    proof = replace(PROOF, target=target, variant=variant, verdict=verdict)
    assert rows(proof_table([proof], target, is_here=False))[0][0][2] == shown


@pytest.mark.parametrize(
    ("target", "is_here", "not_yet"),
    [("sm_121a", False, True), ("sm_120a", False, True), ("sm_121a", True, False), ("sm_90a", False, False)],
)
def test_only_absent_gpus_are_called_not_yet_run(target, is_here, not_yet):
    _, lines = rows(proof_table([], target, is_here=is_here))
    assert ("not yet run" in lines[0]) is not_yet


def test_measurement_without_figures_shows_the_reason():
    timing = Timing(samples_s=(0.5,), calls=1, warmups=1)
    ceilings = Ceilings(
        read=Ceiling(work=100e9, scale=1e9, unit="GB/s", timing=timing),
        matrix=Ceiling(work=1e12, scale=1e12, unit="TFLOP/s", timing=timing),
        matrix_type="bfloat16",
    )
    figures = Figures(
        timing=timing,
        bytes=50e9,
        flops=1e11,
        rotation_bytes=1.0,
        read_gb_s=200.0,
        matrix_tflop_s=2.0,
        peak_memory_bytes=0,
        first_call_s=1.234,
    )
    names = {"op": "linear", "part": "qkv", "m": 4, "implementation": "triton:gemm", "activation": "bf16"}
    outcomes = [OpOutcome(**names, figures=figures), OpOutcome(**names, why="refused: [x] too many")]
    cells, lines = rows(bench_table(outcomes, ceilings, "a GPU"))
    shown = ["linear", "qkv", "4", "triton:gemm", "bf16"]
    assert cells == [
        [*shown, "500000.0", "100", "0.20", "50.0 %", "read", "1.23"],
        [*shown, *[""] * 4, "refused: [x] too many", ""],
    ]
    assert "read 200 GB/s, matrix 2.0 TFLOP/s in bfloat16" in lines[-1] and "host plan" not in "".join(lines)
    planned = OpOutcome(**names, figures=replace(figures, plan_s=0.000123))
    cells, lines = rows(bench_table([outcomes[0], planned], ceilings, "a GPU"))
    assert [row[-1] for row in cells] == ["", "123"] and "host plan is not in us" in " ".join(
        "".join(lines).split()
    )

"""The summary: speeds, failures and the machine's state in words."""

from dataclasses import replace
from pathlib import Path

import pytest

from firesteel.device import GIB, find_device
from firesteel.spark_report.machine_log import MachineSample
from firesteel.spark_report.report import PartReport, Report
from firesteel.spark_report.summary import summarise
from firesteel.surroundings import look_around

CPU = find_device("cpu")
LEVEL = {"level": "4", "verdict": "passed", "reason": "6 workloads", "figures": {}}  # as in the lab's result.json
SERVED = {"name": "pp512 tg32", "series": {"pp_tok_s": {"p50": 1854.4}, "tg_tok_s": {"p50": 60.71}}}
GB10 = replace(CPU, name="NVIDIA GB10", capability=(12, 1), memory_bytes=119 * GIB, is_unified=True)


def summary_of(*parts, device=GB10, **told):
    report = Report(device=device, surroundings=look_around(CPU), quick=False, planned=["a", "b"], **told)
    report.parts += parts
    return summarise(report)


def part(name, result, **told):
    told = {"exit_code": 0, "last_words": "", **told}
    return PartReport(name=name, command="", seconds=9.0, result=result, **told)


def benchy_row(depth, pp, tg):
    """Returns a row as in llama-benchy's report."""
    pp_throughput, tg_throughput = (None if speed is None else {"mean": speed} for speed in (pp, tg))
    sizes = {"context_size": depth, "prompt_size": 2048, "response_size": 32}
    return {**sizes, "pp_throughput": pp_throughput, "tg_throughput": tg_throughput}


@pytest.mark.parametrize(
    ("name", "rows", "shown"),
    [
        (
            "decode-gpt-oss-20b",
            [
                {"batch": 1, "context": 2048, "tok_s": 61.25},
                {"batch": 5, "context": 8, "not_measured": "too large"},
            ],
            "batch 1 at 2048 tokens: 61.2 tok/s, batch 5 at 8 tokens: not measured: too large",
        ),
        ("prefill-gpt-oss-120b-mxfp4", [{"tokens": 512, "tok_s": 1854.4}], "512 tokens: 1854 tok/s"),
        (
            "model-prefill",
            [{"tokens": 512, "tok_s": 1854.4, "load_s": 31.25}],
            "weights read in 31.2 s, 512 tokens: 1854 tok/s",
        ),
        ("model-engine", [{"concurrency": 8, "output_tok_s": 99.96}], "8 in flight: 100.0 tok/s"),
        (
            "model-quality",
            [{"precision": "all MXFP4", "perplexity": 2.5, "right": 7}],
            "all MXFP4: perplexity 2.5000, 7 right",
        ),
        (
            "model-serve",
            {"levels": [{**LEVEL, "figures": {"bench": {"rows": [SERVED, {"name": "x", "series": {}}]}}}]},
            "pp512 tg32: prompts 1854 tok/s, answers 60.7 tok/s",
        ),
        (
            "model-serve",
            {"levels": [{**LEVEL, "verdict": "failed", "reason": "the server did not start"}]},
            "the server did not start",
        ),
        (
            "model-llama-benchy",
            {"benchmarks": [benchy_row(0, 1854.44, 60.71), benchy_row(4096, 1700.0, None)]},
            "pp2048: 1854.4 tok/s, tg32: 60.7 tok/s, pp2048 @ d4096: 1700.0 tok/s, tg32 @ d4096: no figure",
        ),
        ("doctor", [{"status": "ok"}, {"status": "ok"}, {"status": "note"}], "1 note, 2 ok"),
        ("bench-bf16", [{"bound": "read"}, {"why": "refused"}], "1 not measured, 1 read"),
        ("verify", None, "no result"),
    ],
)
def test_results_are_in_the_summary(name, rows, shown):
    assert f"- {name}: done, 9 s; {shown}\n" in summary_of(part(name, rows))


def test_a_part_that_was_ended_shows_why():
    text = summary_of(part("verify", None, exit_code=125, reason="stopped: 1.0 GiB", last_words="loading"))
    assert "- verify: FAILED (exit code 125; stopped: 1.0 GiB), 9 s; no result" in text
    assert "## verify (exit code 125)\n\n```\nstopped: 1.0 GiB\nloading\n```" in text


def test_a_part_whose_program_is_missing_is_a_row_and_not_a_failure():
    missing = {"not_measured": "llama-benchy is not installed", "output": ""}
    text = summary_of(part("model-llama-benchy", missing, exit_code=1, last_words="not measured"))
    assert "- model-llama-benchy: not measured, 9 s; llama-benchy is not installed\n" in text and "##" not in text
    missing = {"not_measured": "no book", "output": "Error downloading"}
    text = summary_of(part("model-llama-benchy", missing, exit_code=1))
    assert (
        "9 s; no book\n" in text and "## model-llama-benchy (not measured)\n\n```\nError downloading\n```" in text
    )


def test_memory_temperature_and_clocks_are_in_the_summary():
    samples = tuple(
        MachineSample(seconds=0.0, available_gib=free, sm_mhz=mhz, memory_mhz=None, temperature_c=heat, draw_w=None)
        for free, mhz, heat in ((90.0, 2400.0, 40.0), (31.5, 2100.0, 71.0), (50.0, None, None))
    )
    text = summary_of(part("doctor", [], machine=samples))
    assert "least free memory 31.5 GiB, hottest 71 C, SM clock 2100 to 2400 MHz" in text


def test_steps_of_a_real_checkpoint_that_a_cpu_does_not_time_have_a_reason():
    """Once the part was missing without a word."""
    for model, count in ((Path("/models/x"), 1), (None, 0)):
        shown = summary_of(device=CPU, model=model).count("- model-decode: left out: steps are timed on a GPU only")
        assert shown == count


def test_summary_shows_what_is_left_out_what_runs_and_where_to_send_it():
    text = summary_of(device=replace(GB10, memory_bytes=24 * GIB), running="decode-x")
    assert "- decode-gpt-oss-120b: left out: needs 80 GiB, NVIDIA GB10 has 24\n" in text
    assert "- parts: 0 of 2\n- running when this was written: decode-x\n" in text
    assert "Attach this file to an issue of the firesteel project" in text and "http" not in text

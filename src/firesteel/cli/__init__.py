"""The command line: verbs, flags made from the knobs, tables on the terminal; knows no arithmetic."""

from firesteel.cli import (
    bench,
    bench_agreement,
    bench_decode,
    bench_engine,
    bench_frontend,
    bench_prefill,
    bench_quality,
    calibrate,
    machine,
    prove,
    quantize,
    report,
    roofline,
    running,
    tune,
    verify,
)
from firesteel.cli.app import app, main
from firesteel.cli.lacking import load_verb

__all__ = [
    "app", "bench", "bench_agreement", "bench_decode", "bench_engine", "bench_frontend", "bench_prefill",
    "bench_quality", "calibrate", "machine", "main", "prove", "quantize", "report", "roofline", "running",
    "tune", "verify",
]  # fmt: skip

for _name in ("chat", "profile", "serve"):
    load_verb(_name)
load_verb("lab", "lab_compare", "lab_matrix", "lab_report", "lab_rerun", "lab_review")

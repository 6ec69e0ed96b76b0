"""The command line: verbs, flags made from config.py, tables on the terminal; knows no arithmetic."""

from firesteel.cli import (
    bench,
    bench_agreement,
    bench_decode,
    bench_engine,
    bench_frontend,
    bench_prefill,
    bench_quality,
    calibrate,
    chat,
    lab,
    lab_compare,
    lab_matrix,
    lab_report,
    lab_rerun,
    lab_review,
    machine,
    profile,
    prove,
    quantize,
    report,
    roofline,
    running,
    serve,
    tune,
    verify,
)
from firesteel.cli.app import app, main

__all__ = [
    "app", "bench", "bench_agreement", "bench_decode", "bench_engine", "bench_frontend", "bench_prefill",
    "bench_quality", "calibrate", "chat", "lab", "lab_compare", "lab_matrix", "lab_report", "lab_rerun",
    "lab_review", "machine", "main", "profile", "prove", "quantize", "report", "roofline", "running", "serve",
    "tune", "verify",
]  # fmt: skip

"""The command line: verbs, flags made from config.py, tables on the terminal; knows no arithmetic."""

from firesteel.cli import bench_engine, lab, quantize, running
from firesteel.cli.app import app, main

__all__ = ["app", "bench_engine", "lab", "main", "quantize", "running"]

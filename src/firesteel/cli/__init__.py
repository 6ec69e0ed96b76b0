"""The command line: verbs, flags made from config.py, tables on the terminal; knows no arithmetic."""

from firesteel.cli import bench, lab, prove, quantize, report, running, verify
from firesteel.cli.app import app, main

__all__ = ["app", "bench", "lab", "main", "prove", "quantize", "report", "running", "verify"]

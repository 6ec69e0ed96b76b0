"""The command line: verbs, flags made from config.py, tables on the terminal; knows no arithmetic."""

from firesteel.cli import lab, quantize, running
from firesteel.cli.app import app, main

__all__ = ["app", "lab", "main", "quantize", "running"]

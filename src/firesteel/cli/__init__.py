"""The command line: verbs, flags made from the settings, and tables for the terminal."""

from importlib import import_module

from firesteel.cli.app import app, main
from firesteel.cli.optional import load_verb

__all__ = ["app", "main"]

# In the order of the help page; importing a module registers its verb.
for _name in (
    "bench.ops",
    "bench.agreement",
    "bench.decode",
    "bench.engine",
    "bench.frontend",
    "bench.prefill",
    "bench.quality",
    "bench.workload",
    "model.calibrate",
    "machine.doctor",
    "machine.prove",
    "model.quantize",
    "machine.spark_report",
    "machine.roofline",
    "model.pull",
    "model.list",
    "model.generate",
    "model.env",
    "model.evaluate",
    "machine.tune",
    "machine.verify",
):
    import_module(f"firesteel.cli.{_name}")
load_verb("chat", "chat.command")
load_verb("profile", "machine.profile")
load_verb("serve", "model.serve")
load_verb(
    "lab",
    "lab.run",
    "lab.benchy",
    "lab.board",
    "lab.compare",
    "lab.judge",
    "lab.matrix",
    "lab.reference",
    "lab.report",
    "lab.rerun",
    "lab.review",
)

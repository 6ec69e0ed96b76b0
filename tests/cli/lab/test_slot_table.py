"""The slots of a kernel path in the terminal."""

import io

from rich.console import Console

from firesteel.cli.lab.slot_table import slot_table
from tests.lab.path import evidence_lines as lines
from tests.lab.path.evidence_lines import judge, vllm


def test_table_shows_values_states_and_cures_of_slots_that_count():
    table = judge("vllm", log=vllm(lines.MARLIN, lines.FLASHINFER), path="native-fp4")
    console = Console(width=300, record=True, file=io.StringIO())
    console.print(slot_table(table))
    text = console.export_text()
    rows = {line.split("│")[1].strip(): line for line in text.splitlines() if line.startswith("│")}
    assert "kernel path of vllm, judged as native-fp4" in text
    assert "contradicted" in rows["moe"] and "Using 'MARLIN'" in rows["moe"] and "--moe-backend" in rows["moe"]
    assert "expected: cutlass" in rows["moe"]
    assert "not seen" in rows["dense"] and "--trace" not in rows["dense"]  # nobody asked for it


def test_slot_whose_value_cannot_be_told_says_why():
    """Triton's experts were shown as not seen beside the line that shows them."""
    table = judge("vllm", log=vllm("Using 'TRITON' Mxfp4 MoE backend"), capability=(12, 1))
    console = Console(width=400, record=True, file=io.StringIO())
    console.print(slot_table(table))
    assert "and its version is unknown" in console.export_text()

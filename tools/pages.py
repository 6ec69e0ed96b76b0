"""Writes the tables and the chart of measured figures in the README and in docs/ from their records.

python tools/pages.py          # rewrites the text between the markers
"""

from __future__ import annotations

import re
from pathlib import Path

from comparison_chart import write_chart
from tables import cpu, mixed, ops, peers, quality, speculate, steps, vllm
from tables.records import ROOT

DOCS = ROOT / "docs"


def list_pages() -> dict[Path, dict[str, str]]:
    """Returns the tables of each page by the names of their markers."""
    return {
        ROOT / "README.md": {"peers": peers.quick_table()},
        DOCS / "comparison.md": {"peers": peers.peers_table(), "starts": peers.starts_table()},
        DOCS / "benchmarks.md": {
            "decode": steps.decode_table(steps.read_decode()),
            "loop": steps.loop_table(steps.read_loop()),
            "prefill": steps.prefill_table(steps.read_prefill()),
            "workload": steps.workload_table(steps.read_workload()),
            "mixed": mixed.mixed_table(mixed.read_mixed()),
            "ops": ops.ops_table(ops.read_ops()),
            "engine": cpu.engine_table(cpu.read_engines()),
            "frontend": cpu.frontend_table(cpu.read_frontend()),
        },
        DOCS / "quality.md": {
            "quality": quality.quality_table(quality.read_quality()),
            "kv": quality.kv_table(quality.read_kv()),
            "agreement": quality.agreement_table(quality.read_agreement()),
        },
        DOCS / "vllm.md": {"vllm": vllm.vllm_table(vllm.read_vllm())},
        DOCS / "kernels.md": {
            "libraries": ops.library_table(ops.read_libraries()),
            "implementations": ops.implementation_table(ops.read_library_ops()),
        },
        DOCS / "speculation.md": {"verify": speculate.verify_table(speculate.read_verify())},
        DOCS / "batch-invariance.md": {
            "invariance": quality.bits_table(quality.read_invariance()),
            "invariance-cost": quality.cost_table(quality.read_invariance_cost()),
        },
    }


def write(page: Path, tables: dict[str, str]) -> str:
    """Returns the text of a page with its tables renewed."""
    text = page.read_text(encoding="utf-8")
    for name, table in tables.items():
        markers = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        text, count = markers.subn(lambda match, table=table: f"{match[1]}{table}\n{match[2]}", text)
        if count != 1:
            raise SystemExit(f"{page} must have the markers of the table {name} once, not {count} times")
    return text


def write_all() -> None:
    """Renews the tables of all pages, and the chart."""
    for page, tables in list_pages().items():
        page.write_text(write(page, tables), encoding="utf-8")
    write_chart()


if __name__ == "__main__":
    write_all()

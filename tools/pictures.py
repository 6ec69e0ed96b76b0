"""Makes the pictures of README and docs: the terminal after a lab run, its report, and the status page.

make run && .venv/bin/python tools/pictures.py [RESULT]          # RESULT: firesteel-lab/result.json

The terminal is drawn from the result by the code that prints it; report and page are photographed with Chromium.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from firesteel.cli.lab.run_table import RunTable
from firesteel.cli.lab.slot_table import slot_table
from firesteel.lab.result import LabResult, read_result
from tables.records import ROOT

sys.path.insert(0, str(ROOT))
from tests.server.browser import Browser

IMAGES = ROOT / "docs" / "images"
QUESTION = "What is the capital of France?"
COLUMNS = 118


def draw_terminal(result: LabResult) -> str:
    """Returns what `lab run` prints at its end as SVG."""
    assert result.spec is not None
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, legacy_windows=False)
    table = RunTable(result.spec)
    for level in result.levels:
        table.end(level)
    console.print(Text("$ firesteel lab run --quick", style="bold"))
    console.print(table)
    if result.any_slots is not None:
        console.print(slot_table(result.any_slots))
    console.print(f"{result.verdict.value} after {result.seconds:.0f} s; report: firesteel-lab/report.html")
    # The fonts that it would load from elsewhere are left out: a monospaced one of the reader's does as well.
    return re.sub(r"@font-face \{.*?\}", "", console.export_svg(title="firesteel"), flags=re.DOTALL)


def photograph_report(report: Path, path: Path) -> None:
    """Saves a picture of the top of a report, down to its levels."""
    with tempfile.TemporaryDirectory() as profile:
        browser = Browser(profile)
        try:
            browser.open(report.resolve().as_uri(), width=1100, height=1062)
            browser.wait_for("document.readyState === 'complete'")
            browser.run("document.documentElement.style.overflow = 'hidden'")  # no scroll bar
            browser.screenshot(path)
        finally:
            browser.close()


def photograph_page(path: Path) -> None:
    """Serves the built-in model, asks it a question on its page and saves a picture of the answer."""
    command = [sys.executable, "-m", "firesteel", "serve", "--port", "0"]
    with (
        tempfile.TemporaryDirectory() as profile,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server,
    ):
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        browser = Browser(profile)
        try:
            browser.open(f"{address}/", width=1200, height=760)
            browser.wait_for("document.getElementById('health').className === 'ready'")
            browser.type("#text", QUESTION)
            browser.press_enter()
            browser.wait_for("document.querySelector('.figures')")
            browser.screenshot(path)
        finally:
            browser.close()
            server.terminate()


def main() -> None:
    words = sys.argv[1:] or [str(ROOT / "firesteel-lab" / "result.json")]
    IMAGES.mkdir(exist_ok=True)
    photograph_report(Path(words[0]).with_name("report.html"), IMAGES / "report.png")
    (IMAGES / "terminal.svg").write_text(draw_terminal(read_result(Path(words[0]))), encoding="utf-8")
    photograph_page(IMAGES / "page.png")


if __name__ == "__main__":
    main()

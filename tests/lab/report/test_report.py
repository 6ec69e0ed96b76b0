"""The report says what the result says, in HTML and in Markdown alike."""

import importlib.util
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from firesteel.errors import UserError
from firesteel.lab.report.document import DOUBTFUL, GOOD, PLAIN, Cell
from firesteel.lab.report.html import to_html
from firesteel.lab.report.markdown import to_markdown
from firesteel.lab.report.report import build, gather, judge, read_result, write_report
from firesteel.lab.report.sections import kernels

spec = importlib.util.spec_from_file_location("report_parts", Path(__file__).parents[1] / "report_parts.py")
parts = importlib.util.module_from_spec(spec)
spec.loader.exec_module(parts)


class Balanced(HTMLParser):
    """Fails on a tag that is never closed."""

    EMPTY = ("meta", "link", "br")

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.text = [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def read(page):
    parser = Balanced()
    parser.feed(page)
    assert not parser.open
    return parser, " ".join(parser.text)


@pytest.fixture(scope="module")
def document():
    return build(parts.result())


def test_page_is_well_formed_and_asks_nothing_of_a_network(document):
    parser, _ = read(to_html(document))
    assert not {"script", "img", "iframe"} & {tag for tag, _ in parser.tags}
    addresses = [given[name] for _, given in parser.tags for name in ("href", "src") if name in given]
    assert all(address.startswith(("#", "data:")) for address in addresses)
    assert not re.search(r"url\(|@import", to_html(document))


@pytest.mark.parametrize("write", [to_html, to_markdown])
def test_both_forms_hold_every_section(document, write):
    text = write(document)
    for words in (
        "All 3 levels that were run passed", "level 5 was not run: no baseline", "reduced: 40 requests instead",
        "reason of 1.5", "native-fp4", "pp512 tg32 @ d4096", "vLLM 0.26.0", "45.0 %", "5000.0", "killed by SIGSEGV",
        "Memory over time", "nothing is slower", "experts", "firesteel lab",
    ):  # fmt: skip
        assert words in text, words


def test_a_level_that_failed_is_the_verdict():
    levels = [parts.level("1"), parts.level("1.5", passed=False, reason="moe ran as reference"),
              parts.level("4", valid=False)]  # fmt: skip
    verdict, tone, lines = judge(parts.result(levels=levels))
    assert (verdict, tone) == ("1 of 3 levels failed", "bad")
    assert any("moe ran as reference" in line for line in lines)
    assert any("level 4 do not count" in line for line in lines)
    assert "does not count" in to_html(build(parts.result(levels=levels)))


def test_no_share_is_claimed_on_a_cpu():
    rows = [parts.bench_row(share=None)]
    page = to_html(build(parts.result(bench=parts.bench(rows, device="CPU"))))
    assert "no share is claimed" in page and "No figures of other engines" in page
    assert "red mark" not in page


def test_without_formats_no_share_is_spoken_of():
    page = to_html(build(parts.result(bench=parts.bench([{**parts.bench_row(), "shares": {}}]))))
    assert "formats of the model are not known" in page and "shares are of" not in page


def test_shares_above_the_roof_are_explained():
    page = to_html(build(parts.result(bench=parts.bench([parts.bench_row(share=1.3)]))))
    assert "above 100 %" in page
    assert "above 100 %" not in to_html(build(parts.result()))


def test_sections_inside_levels_are_found():
    levels = [parts.level("4", bench=parts.bench()), parts.level("6", matrix=parts.matrix())]
    whole = gather({"levels": levels})
    assert whole["bench"]["rows"] and whole["matrix"]["cells"]


def test_the_ledger_inside_the_backend_is_the_table_of_kernels():
    backend = {
        "seen": {},
        "faults": ["marlin ran: line 7"],
        "ledger": {
            "ran": [
                {
                    "op": "linear",
                    "implementation": "triton",
                    "calls": 2,
                    "seconds": 0.1,
                    "activation": "mxfp8",
                    "launches": {"k": 2},
                    "artefacts": [{"kernel": "k", "tile": "64", "artefact": "ab", "launches": 2, "verdict": "fp8"}],
                }
            ]
        },
    }
    page = to_html(build({"levels": [parts.level("1.5", backend=backend)]}))
    assert "2 x k" in page and ">fp8<" in page and "fault: marlin ran: line 7" in page
    assert "us a call" in page and ">50000<" in page


def test_kernels_whose_calls_were_not_timed_have_no_column_of_times():
    ran = [{"op": "linear", "implementation": "triton", "calls": 2, "seconds": 0.0, "launches": {"k": 2}}]
    page = to_markdown(build({"levels": [parts.level("1.5", backend={"seen": {}, "ledger": {"ran": ran}})]}))
    assert "| op | implementation | activations | calls | proof | launched |" in page
    assert "| linear | triton |  | 2 | - | 2 x k |" in page


def test_a_server_that_did_not_end_cleanly_is_the_verdict():
    verdict, tone, lines = judge(parts.result(shutdown={"is_clean": False, "words": "left 2 behind"}))
    assert tone == "bad" and "did not end cleanly" in verdict and any("left 2 behind" in line for line in lines)


def test_levels_alone_make_a_report():
    page = to_html(build({"levels": [parts.level("1")]}))
    assert "All 1 levels" in page and "Speed" not in page


def test_what_a_server_said_is_shown_as_text():
    levels = [parts.level("1", passed=False, reason="<script>alert(1)</script> | broke")]
    _, text = read(to_html(build({"levels": levels})))
    assert "<script>alert(1)</script>" in text  # as text, not as a tag: read() saw it as data
    assert "\\| broke" in to_markdown(build({"levels": levels}))


def test_files_are_written_and_read_back(tmp_path):
    assert [path.name for path in write_report(parts.result(), tmp_path)] == ["report.html", "report.md"]
    (tmp_path / "result.json").write_text(json.dumps(parts.result()))
    assert read_result(tmp_path)["engine"]["name"] == "firesteel"
    with pytest.raises(UserError, match="give a result"):
        read_result(tmp_path / "nothing.json")
    (tmp_path / "wrong.json").write_text("[]")
    with pytest.raises(UserError, match="no result of the lab"):
        read_result(tmp_path / "wrong.json")


def test_first_run_says_that_nothing_was_compared():
    levels = [parts.level("4"), parts.level("5", baseline="b.json", visible_change=0.02)]
    text = to_markdown(build({"levels": levels}))
    assert "All 2 levels passed" in text and "no earlier run to compare with" in text
    assert "no earlier run" not in to_markdown(
        build({"levels": [parts.level("5", baseline="b.json", comparison={})]})
    )


def test_chart_says_how_many_workloads_it_leaves_out():
    rows = [parts.bench_row(depth=depth) for depth in range(40)]
    page = to_html(build(parts.result(bench=parts.bench(rows))))
    assert page.count("4 workloads more are among the raw samples") >= 3
    assert "workloads more" not in to_html(build(parts.result()))


@pytest.mark.parametrize(
    ("activation", "verdicts", "words", "tone"),
    [
        ("", [], "-", PLAIN),
        ("bf16", ["none"], "none", PLAIN),
        ("bf16", ["none", "bf16"], "bf16", PLAIN),
        ("mxfp8", ["bf16", "none"], "bf16", DOUBTFUL),
        ("mxfp8", ["native-fp4", "bf16"], "bf16, native-fp4", DOUBTFUL),
        ("mxfp8", ["int8"], "int8", GOOD),
        ("", [None], "not read yet", DOUBTFUL),
        ("", ["unread"], "unread", DOUBTFUL),
    ],
)
def test_the_proof_of_a_row_is_what_its_machine_code_multiplies_with(activation, verdicts, words, tone):
    row = {"op": "linear", "activation": activation, "artefacts": [{"verdict": one} for one in verdicts]}
    table, _ = kernels([row], {})
    assert table.rows[0][table.headings.index("proof")] == Cell(words, tone)

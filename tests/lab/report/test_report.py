"""The report says what the result says, in HTML and in Markdown alike."""

import re
from html.parser import HTMLParser

import pytest

from firesteel.lab.path.ledger import LaunchedCode, OpCalls
from firesteel.lab.report.document import BAD, DOUBTFUL, GOOD, PLAIN, Cell
from firesteel.lab.report.headline import make_headline
from firesteel.lab.report.html import to_html
from firesteel.lab.report.markdown import to_markdown
from firesteel.lab.report.report import build_document, write_report
from firesteel.lab.report.sections import kernels
from firesteel.lab.result import LabResult, parse_result
from firesteel.lab.servers.server_exit import ServerExit
from tests.lab import report_parts as parts
from tests.lab.path import evidence_lines as lines
from tests.lab.path.evidence_lines import judge as judge_slots
from tests.lab.path.evidence_lines import vllm


class BalancedParser(HTMLParser):
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
    parser = BalancedParser()
    parser.feed(page)
    assert not parser.open
    return parser, " ".join(parser.text)


def page_of(**changes):
    return to_html(build_document(parts.result(**changes)))


def text_of(*levels):
    return to_markdown(build_document(LabResult(levels=parts.parsed_levels(*levels))))


@pytest.fixture(scope="module")
def document():
    return build_document(parts.result())


def test_page_is_well_formed_and_makes_no_requests(document):
    parser, _ = read(to_html(document))
    assert not {"script", "img", "iframe"} & {tag for tag, _ in parser.tags}
    addresses = [given[name] for _, given in parser.tags for name in ("href", "src") if name in given]
    assert all(address.startswith(("#", "data:")) for address in addresses)
    assert not re.search(r"url\(|@import", to_html(document))


@pytest.mark.parametrize("write", [to_html, to_markdown])
def test_both_formats_hold_every_section(document, write):
    text = write(document)
    for words in (
        "All 3 levels that were judged passed",
        "level 5 was not judged: no baseline",
        "reduced: 40 requests instead",
        "reason of 1.5",
        "native-fp4",
        "pp512 tg32 @ d4096",
        "vLLM 0.26.0",
        "45.0 %",
        "5000.0",
        "killed by SIGSEGV",
        "Memory over time",
        "none of 1 figures is worse",
        "experts",
        "outside layers" if write is to_markdown else "By layer",
        "firesteel lab",
    ):
        assert words in text, words


def test_failed_level_is_the_verdict():
    levels = [
        parts.level("1"),
        parts.level("1.5", "failed", reason="moe ran as reference"),
        parts.level("4", valid=False),
    ]
    headline = make_headline(parts.result(levels=levels))
    assert (headline.words, headline.tone) == ("1 of 3 levels failed", BAD)
    assert any("moe ran as reference" in line for line in headline.lines)
    assert any("level 4 do not count" in line for line in headline.lines)
    assert "does not count" in page_of(levels=levels)


def test_cpu_has_no_share_of_a_roofline():
    page = page_of(bench=parts.bench([parts.bench_row(share=None)], device="CPU"))
    assert "bytes but no share" in page and "No figures of other engines" in page
    assert "red mark" not in page


@pytest.mark.parametrize(
    ("formats", "words"),
    [
        (
            {"mxfp4_layers": "qkv,o", "activation": "bf16", "prefill_activation": "mxfp8", "kv": "bfloat16"},
            "precision: experts, qkv, o in MXFP4; activations bf16, in prompts mxfp8; keys and values bfloat16",
        ),
        (
            {"mxfp4_layers": "", "activation": "mxfp8", "kv": "bfloat16"},
            "precision: experts in MXFP4; activations mxfp8; keys and values bfloat16",
        ),
    ],
)
def test_precision_of_the_figures_is_shown(formats, words):
    bench = {**parts.bench([parts.bench_row()]), "formats": formats}
    assert words in page_of(bench=bench)
    assert "precision: " not in page_of(bench=parts.bench([parts.bench_row()]))


def test_unknown_formats_mean_no_shares():
    page = page_of(bench=parts.bench([{**parts.bench_row(), "shares": {}}]))
    assert "sizes or formats are unknown" in page and "shares are of" not in page


def test_shares_above_the_roof_are_explained():
    assert "above 100 %" in page_of(bench=parts.bench([parts.bench_row(share=1.3)]))
    assert "above 100 %" not in page_of()


def test_parts_of_levels_have_their_sections():
    levels = parts.parsed_levels(parts.level("4", bench=parts.bench()), parts.level("6", matrix=parts.matrix()))
    titles = [section.title for section in build_document(LabResult(levels=levels)).sections]
    assert {"Speed", "Latency", "Memory and CPU", "Matrix of gates"} <= set(titles)


def ledger(**fields):
    calls = {"op": "linear", "implementation": "triton", "calls": 2, "launches": {"k": 2}, **fields}
    return {"device": "CPU", "ran": [calls]}


def test_ledger_of_the_kernel_path_is_the_table_of_kernels():
    code = {"kernel": "k", "tile": "64", "artefact": "ab", "launches": 2, "verdict": "fp8"}
    ran = ledger(seconds=0.1, activation="mxfp8", artefacts=[code])
    page = to_html(build_document(LabResult(levels=parts.parsed_levels(parts.level("1.5", ledger=ran)))))
    assert "2 x k" in page and ">fp8<" in page
    assert "us per call" in page and ">50000<" in page


def test_slots_show_state_evidence_and_cure():
    table = judge_slots("vllm", log=vllm(lines.MARLIN, lines.FLASHINFER), expect="moe=cutlass,graphs=on")
    text = text_of(parts.level("1.5", "failed", slots=table.as_dict()))
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in text.splitlines() if line.startswith("| ")}
    assert rows["moe"].startswith("| moe | marlin | ❌ contradicted | cutlass | log: Using 'MARLIN' Mxfp4")
    assert "--moe-backend flashinfer_cutlass" in rows["moe"]
    assert rows["dense"] == "| dense |  | not seen | not firesteel or emulation |  |  |"  # nobody asked for it
    assert rows["attention"].startswith("| attention | flashinfer | ✅ seen |")
    assert rows["graphs"] == "| graphs |  | ⚠️ not seen | on |  | add a profile of the server (--trace) |"


def test_kernels_without_times_have_no_column_of_times():
    text = text_of(parts.level("1.5", ledger=ledger(seconds=0.0)))
    assert "| op | implementation | activations | calls | proof | launched |" in text
    assert "| linear | triton |  | 2 | - | 2 x k |" in text


def test_server_that_did_not_stop_cleanly_is_the_verdict():
    shutdown = ServerExit(how="on SIGKILL", exit_code=-9, seconds=1.0)
    headline = make_headline(LabResult(levels=parts.parsed_levels(parts.level("1")), shutdown=shutdown))
    assert headline.tone == BAD and "did not stop cleanly" in headline.words
    assert any("on SIGKILL" in line for line in headline.lines)


def test_levels_alone_make_a_report():
    text = text_of(parts.level("1"))
    assert "All 1 levels" in text and "Speed" not in text


def test_markup_in_a_servers_words_is_escaped():
    level = parts.level("1", "failed", reason="<script>alert(1)</script> | broke")
    _, text = read(to_html(build_document(LabResult(levels=parts.parsed_levels(level)))))
    assert "<script>alert(1)</script>" in text  # parsed as text, not as a tag
    assert "\\| broke" in text_of(level)


def test_files_are_written(tmp_path):
    assert [path.name for path in write_report(parts.result(), tmp_path)] == ["report.html", "report.md"]
    assert all((tmp_path / name).stat().st_size for name in ("report.html", "report.md"))


def test_level_that_is_not_applicable_is_neither_passed_nor_doubted():
    text = text_of(parts.level("4"), parts.level("5", "not applicable", reason="the first run"))
    assert "✅ All 1 levels that were judged passed" in text and "level 5 is not applicable: the first run" in text


@pytest.mark.parametrize(
    ("levels", "words"),
    [
        ([parts.level("1.5", "unproven")], "UNPROVEN: kernel path (level 1.5) could not be judged"),
        (
            [parts.level("1.5", "unproven"), parts.level("2", "unproven")],
            "UNPROVEN: kernel path (level 1.5) and correctness (level 2) could not be judged",
        ),
        ([parts.level("3", "unproven")], "UNPROVEN: no level was judged"),
    ],
)
def test_unproven_run_is_amber_and_says_what_was_not_judged(levels, words):
    headline = make_headline(parts.result(levels=levels))
    assert (headline.words, headline.tone) == (words, DOUBTFUL)
    assert f"⚠️ {words}" in text_of(*levels) and "⚠️ not judged" in text_of(*levels)


def test_cure_of_a_check_is_shown():
    check = {"check": "kernels", "verdict": "unproven", "words": "nothing was seen", "cure": "add --trace"}
    text = text_of(parts.level("1.5", "unproven", checks=[check]))
    assert "| kernels | ⚠️ not judged | nothing was seen | add --trace |" in text


def test_chart_states_how_many_workloads_it_leaves_out():
    rows = [parts.bench_row(depth=depth) for depth in range(40)]
    assert page_of(bench=parts.bench(rows)).count("4 more workloads are among the raw samples") >= 3
    assert "more workloads" not in page_of()


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
def test_proof_is_what_the_machine_code_multiplies_with(activation, verdicts, words, tone):
    codes = tuple(LaunchedCode(verdict=verdict) for verdict in verdicts)
    calls = OpCalls(op="linear", activation=activation, artefacts=codes)
    table, _ = kernels(LabResult(kernels=(calls,)))
    assert table.rows[0][table.headings.index("proof")] == Cell(words, tone)


@pytest.mark.parametrize(
    ("content", "words", "tone"),
    [
        ({"matrix": parts.matrix()}, "3 of 4 cells done", BAD),
        ({"profile": parts.profile()}, "categories and gaps add up to 0.900 ms per step, over 2 steps", GOOD),
        ({"profile": {**parts.profile(), "measured_ms": 0.5}}, "(+80.0 %)", DOUBTFUL),
        ({}, "No level was run", DOUBTFUL),
    ],
)
def test_result_without_levels_is_judged_by_its_part(content, words, tone):
    headline = make_headline(parse_result({"levels": [], **content}))
    assert words in headline.words and headline.tone == tone

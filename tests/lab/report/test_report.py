"""The report says what the result says, in HTML and in Markdown alike."""

import re
from html.parser import HTMLParser

import pytest

from firesteel.lab.engine_info import EngineInfo
from firesteel.lab.path.judge import UNSEEN_CURE
from firesteel.lab.path.ledger import LaunchedCode, OpCalls
from firesteel.lab.report.document import BAD, DOUBTFUL, GOOD, PLAIN, Cell
from firesteel.lab.report.headline import make_headline
from firesteel.lab.report.html import to_html
from firesteel.lab.report.markdown import to_markdown
from firesteel.lab.report.report import build_document, list_facts, write_report
from firesteel.lab.report.sections.kernel_path import prove
from firesteel.lab.result import LabResult, parse_result
from firesteel.lab.servers.server_exit import ServerExit
from firesteel.lab.spec import LabSpec
from tests.lab import report_parts as parts
from tests.lab.path import evidence_lines as lines
from tests.lab.path.evidence_lines import judge as judge_slots
from tests.lab.path.evidence_lines import vllm


class BalancedParser(HTMLParser):
    """Fails on a tag that is never closed."""

    EMPTY = ("meta", "link", "br", "wbr")

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
    assert not {"img", "iframe"} & {tag for tag, _ in parser.tags}
    assert [given for tag, given in parser.tags if tag == "script"] == ([{}] if document.command else [])
    addresses = [given[name] for _, given in parser.tags for name in ("href", "src") if name in given]
    assert all(address.startswith(("#", "data:")) for address in addresses)  # nothing is beside this page
    assert not re.search(r"url\(|@import", to_html(document))


@pytest.mark.parametrize("write", [to_html, to_markdown])
def test_both_formats_hold_every_section(document, write):
    text = write(document)
    for words in (
        "All 3 levels that were judged passed",
        "no baseline",
        "40 requests instead",
        "reason of 1.5",
        "native-fp4",
        "pp512 tg32 @ d4096",
        "vLLM 0.26.0",
        "45.0 %",
        "5000.0",
        "killed by SIGSEGV",
        "Memory over the whole run",
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
    assert (headline.words, headline.tone) == ("1 of 3 levels failed: kernel path (level 1.5)", BAD)
    first, *_, last = headline.findings
    assert (first.name, first.text) == ("1.5 kernel path", "moe ran as reference")
    assert (last.name, last.status) == ("4 benchmark", "do not count")
    assert "does not count" in page_of(levels=levels)


def test_cpu_has_no_share_of_a_roofline():
    page = page_of(bench=parts.bench([parts.bench_row(share=None)], device="CPU"))
    assert "bytes but no share" in page and "No figures of other engines" in page


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
        (
            {"moe": "mxfp4", "dense": "q8_0", "kv": "fp8", "source": "--formats"},
            "precision: experts mxfp4, dense layers q8_0, keys and values fp8 (by --formats)",
        ),
        (
            {"moe": "mxfp4", "dense": "bf16", "mxfp4_layers": "qkv,o", "kv": "fp8"},
            "precision: experts mxfp4, qkv, o mxfp4, other dense layers bf16, keys and values fp8",
        ),
    ],
)
def test_precision_of_the_figures_is_shown(formats, words):
    bench = {**parts.bench([parts.bench_row()]), "formats": formats}
    assert words in page_of(bench=bench)
    assert "precision: " not in page_of(bench=parts.bench([parts.bench_row()]))


def test_headline_workload_is_compared_with_other_engines_and_not_the_best_one():
    rows = [parts.bench_row((900.0,) * 3, pp=512), parts.bench_row((300.0,) * 3, pp=2048)]
    page = page_of(bench=parts.bench(rows))
    assert "this run, pp2048 tg32" in page and "this run, pp512 tg32" not in page


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
    assert len(titles) == len(set(titles)) and sum("emory" in title for title in titles) == 1


def ledger(**fields):
    calls = {"op": "linear", "implementation": "triton", "calls": 2, "launches": {"k": 2}, **fields}
    return {"device": "CPU", "ran": [calls]}


def test_ledger_of_the_kernel_path_is_the_table_of_kernels():
    code = {"kernel": "k", "tile": "64", "artefact": "ab", "launches": 2, "verdict": "fp8"}
    ran = ledger(seconds=0.1, activation="mxfp8", artefacts=[code])
    page = to_html(build_document(LabResult(levels=parts.parsed_levels(parts.level("1.5", ledger=ran)))))
    assert "2 x k" in page and "</span> fp8<" in page
    assert "us per call" in page and ">50000<" in page


def test_drafts_of_the_ledger_are_a_line_of_the_kernel_path():
    drafts = {"kind": "ngram", "drafts": 4, "draft_tokens": 12, "accepted_tokens": 6, "accepted_at": [4, 2]}
    text = text_of(parts.level("1.5", ledger=ledger(seconds=0.1) | {"drafts": drafts}))
    assert "drafts: ngram, 6 of 12 drafted tokens accepted" in text
    assert "drafts:" not in text_of(parts.level("1.5", ledger=ledger(seconds=0.1)))


def test_slots_show_state_evidence_and_cure():
    table = judge_slots("vllm", log=vllm(lines.MARLIN, lines.FLASHINFER), expect="moe=cutlass,graphs=on")
    text = text_of(parts.level("1.5", "failed", slots=table.as_dict()))
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in text.splitlines() if line.startswith("| ")}
    assert rows["moe"].startswith("| moe | ❌ contradicted | marlin | cutlass | log: Using 'MARLIN' Mxfp4")
    assert "--moe-backend flashinfer_cutlass" in rows["moe"]
    assert rows["dense"] == "| dense | not seen |  | not firesteel or emulation |  |  |"  # nobody asked for it
    assert rows["attention"].startswith("| attention | ✅ seen | flashinfer |")
    assert rows["graphs"] == f"| graphs | ⚠️ not seen |  | on |  | {UNSEEN_CURE} |"


def test_kernels_without_times_have_no_column_of_times():
    text = text_of(parts.level("1.5", ledger=ledger(seconds=0.0)))
    assert "| op | implementation | calls | proof | launched |" in text
    assert "| linear | triton | 2 | - | 2 x k |" in text


def test_server_that_did_not_stop_cleanly_is_the_verdict():
    shutdown = ServerExit(how="on SIGKILL", exit_code=-9, seconds=1.0)
    headline = make_headline(LabResult(levels=parts.parsed_levels(parts.level("1")), shutdown=shutdown))
    assert headline.tone == BAD and "did not stop cleanly" in headline.words
    assert any("on SIGKILL" in finding.text for finding in headline.findings)


def test_levels_alone_make_a_report():
    text = text_of(parts.level("1"))
    assert "All 1 levels" in text and "Speed" not in text


def test_markup_in_a_servers_words_is_escaped():
    check = {"check": "<b>boot</b>", "verdict": "failed", "words": "<script>alert(1)</script> | broke"}
    slots = judge_slots("vllm", log=vllm("Using '<i>MARLIN</i>' | Mxfp4 MoE backend", lines.MARLIN))
    level = parts.level("1.5", "failed", checks=[check], slots=slots.as_dict())
    parser, text = read(to_html(build_document(LabResult(levels=parts.parsed_levels(level)))))
    assert "<script>alert(1)</script>" in text and "<b>boot</b>" in text  # parsed as text, not as tags
    assert "script" not in {tag for tag, _ in parser.tags}


@pytest.mark.parametrize(
    ("fields", "facts"),
    [
        ({"level": "2,4", "quick": True}, ["CPU", "level 2,4, quick"]),
        ({"mode": "verify", "url": "http://h:1"}, ["client: CPU", "mode verify"]),
    ],
)
def test_header_says_what_was_asked_and_where_the_client_ran(fields, facts):
    """A server behind --url may run on another machine, whose device nobody knows."""
    result = LabResult(spec=LabSpec(**fields), engine=EngineInfo(name="x", device="CPU"))
    assert list_facts(result)[-2:] == facts


def test_files_are_written(tmp_path):
    assert [path.name for path in write_report(parts.result(), tmp_path)] == ["report.html", "report.md"]
    assert all((tmp_path / name).stat().st_size for name in ("report.html", "report.md"))


def test_level_that_is_not_applicable_is_neither_passed_nor_doubted():
    text = text_of(parts.level("4"), parts.level("5", "not applicable", reason="the first run"))
    assert "✅ All 1 levels that were judged passed" in text and "5 regression: not applicable" in text
    assert "What needs attention" not in text


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
    assert f"⚠️ {words}" in text_of(*levels)
    assert [finding.status for finding in headline.findings] == ["not judged"] * len(levels)


def test_cure_of_a_check_is_shown():
    check = {"check": "kernels", "verdict": "unproven", "words": "nothing was seen", "cure": "add --trace"}
    text = text_of(parts.level("1.5", "unproven", checks=[check]))
    assert "- ⚠️ **1.5 kernel path: kernels** not judged: nothing was seen\n  - cure: add --trace" in text


def test_chart_states_how_many_workloads_it_leaves_out():
    rows = [parts.bench_row(depth=depth) for depth in range(16)]
    assert page_of(bench=parts.bench(rows)).count("4 more workloads are in the table") == 4
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
    assert prove(calls) == Cell(words, tone)


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


def test_report_links_to_the_result_instead_of_repeating_it(tmp_path):
    (tmp_path / "result.json").write_text("{}")
    (tmp_path / "server.log").write_text("")
    engine = {"name": "vllm", "command": ["vllm"], "log": str(tmp_path / "server.log")}
    page, text = write_report(parts.result(engine=engine), tmp_path)
    for target in ("result.json", "server.log"):
        assert f'href="{target}"' in page.read_text() and f"]({target})" in text.read_text()
    assert "<pre>" not in page.read_text() and "token_times_s" not in page.read_text() + text.read_text()


def test_report_in_another_folder_links_to_where_the_result_is(tmp_path):
    (tmp_path / "run").mkdir()
    source = tmp_path / "run" / "result.json"
    source.write_text("{}")
    page, _ = write_report(parts.result(), tmp_path / "report", source)
    assert 'href="../run/result.json"' in page.read_text()


def test_link_to_a_missing_file_is_left_out(tmp_path):
    page, _ = write_report(parts.result(), tmp_path)
    assert "result.json" not in page.read_text()


def test_header_names_version_commit_device_and_time():
    engine = {"name": "vllm", "kind": "vllm", "version": "0.32.0", "commit": "0123456789abcdef", "image": "vllm:1"}
    document = build_document(parts.result(engine=engine, time_utc="2026-11-18T12:00:05Z", seconds=75.0))
    assert document.facts[:3] == ["vllm 0.32.0 (012345678)", "image vllm:1", "NVIDIA H200"]
    assert "2026-11-18 12:00 UTC" in document.facts and document.title == "firesteel lab · vllm"


def test_slots_are_not_listed_twice_among_the_checks_of_a_level():
    slots = judge_slots("vllm", log=vllm(lines.CUTLASS, lines.FLASHINFER))
    checks = [{"check": name, "verdict": "passed", "words": f"{name} words"} for name in ("moe", "imports")]
    text = text_of(parts.level("1.5", checks=checks, slots=slots.as_dict()))
    assert "imports words" in text and "moe words" not in text and "| moe | ✅ seen | cutlass |" in text


def test_checks_are_rows_and_their_chain_is_not_repeated():
    checks = [{"check": name, "verdict": "passed", "words": f"{name} is fine"} for name in ("boot", "answer")]
    text = text_of(parts.level("1", reason="boot is fine; answer is fine", checks=checks))
    assert "- ✅ **boot** passed: boot is fine" in text and "boot is fine; answer" not in text
    assert "2 of 2 checks passed" in text


def test_levels_that_were_not_run_for_one_reason_share_a_row():
    levels = parts.parsed_levels(*(parts.level(name, "unproven", reason="not run: x") for name in ("3", "4", "5")))
    (finding,) = make_headline(LabResult(levels=levels)).findings
    assert (finding.name, finding.text) == ("3 stress, 4 benchmark, 5 regression", "not run: x")


def test_failed_server_is_shown_with_its_last_line_and_cure():
    diagnosis = {"kind": "fault", "words": "it crashed", "cure": "see its log", "evidence": ["first", "last line"]}
    level = parts.level("4", "failed", diagnosis=diagnosis, bundle="crashes/1")
    (finding,) = make_headline(LabResult(levels=parts.parsed_levels(level))).findings
    assert (finding.text, finding.cure) == ("it crashed\nlast line", "see its log")


def test_long_list_of_failures_is_cut_and_counted():
    words = "; ".join(f"figure {number}" for number in range(20))
    check = {"check": "speed", "verdict": "failed", "words": words, "cure": ""}
    (finding,) = make_headline(
        LabResult(levels=parts.parsed_levels(parts.level("5", "failed", checks=[check])))
    ).findings
    assert finding.text.splitlines() == [*(f"figure {number}" for number in range(6)), "and 14 more"]

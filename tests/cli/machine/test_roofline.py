"""The verb roofline: its tables, its JSON, its page."""

import json

import pytest

from firesteel import UserError


def test_roofline_prints_the_ceiling_and_every_op(run):
    text = run("roofline", "--model", "gpt-oss-120b", "--gpu", "gb10", "--dense", "mxfp4").stdout
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if "│" in line]
    parts = [row[:2] for row in rows]
    for part in (["linear", "qkv"], ["linear", "lm_head"], ["moe_matmul", "gate_up"], ["attention", "all"]):
        assert part in parts
    total = next(row for row in rows if row[0] == "all")
    assert (total[3], total[-1]) == ("2749.0", "11849.0")
    assert ["measured read", "232", "11.849", "84.4", "85 %", "71.7", "predicted, not yet run"] in rows
    assert "drafted" not in text
    assumed = [line for line in text.splitlines() if line.startswith("assumed: ")]
    assert len(assumed) == 5 and "not yet run on GB10" in assumed[-1] and "15 % of the step" in assumed[2]


def test_roofline_json_follows_every_flag(run):
    def asked(*flags):
        result = run("roofline", "--gpu", "h200", "--json", *flags)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    plain = asked()
    assert len(plain["assumptions"]) == 4 and "by firesteel" in plain["assumptions"][-1]
    assert plain["model"] == "gpt-oss-120b" and plain["gpu"] == "H200 SXM" and plain["speculation"] == []
    assert plain["bytes"] == pytest.approx(5.0e9, rel=1e-3) and plain["flops"] == pytest.approx(10.26e9, rel=1e-3)
    assert [round(prediction["ceiling_tok_s"]) for prediction in plain["predictions"]] == [959, 928]
    assert sum(op["matrix_bytes"] + op["vector_bytes"] + op["kv_bytes"] for op in plain["ops"]) == plain["bytes"]
    assert asked("--model", "gpt-oss-20b")["bytes"] == pytest.approx(3.71e9, rel=1e-3)
    assert asked("--dense", "q8_0")["bytes"] == pytest.approx(3.56e9, rel=2e-3)
    long, half = (asked("--context", "8192", "--kv", kv)["bytes"] for kv in ("bf16", "fp8"))
    assert long - plain["bytes"] == pytest.approx(307e6, rel=1e-2) and long - half == pytest.approx(153e6, rel=1e-2)
    assert asked("--batch", "8")["distinct_experts"] == pytest.approx(28.7, abs=0.05)
    assert asked("--batch", "8", "--experts", "20")["distinct_experts"] == 20
    assert asked("--share", "0.5")["predictions"][0]["predicted_tok_s"] == pytest.approx(959.4 / 2, rel=1e-3)
    assert asked("--draft-tokens", "3")["speculation"][2]["cost"] == pytest.approx(2.07, abs=0.005)
    asked_about = asked("--draft-tokens", "3", "--acceptance", "0.7", "--overlap", "0.5", "--draft-gb", "0.1")
    last = asked_about["speculation"][2]
    assert last["length"] == pytest.approx(1 + 0.7 + 0.49 + 0.343) and last["distinct_experts"] < 10
    assert last["speedup"] == pytest.approx(last["length"] / last["cost"])


def test_roofline_accepts_a_checkpoint_and_shows_when_drafts_gain(run, checkpoint):
    result = run("roofline", "--gpu", "5090", "--model", str(checkpoint), "--draft-tokens", "2")
    assert result.exit_code == 0, result.output
    assert "speculation, compared with decoding token by token" in result.stdout
    assert "break-even acceptance" in result.stdout


def test_ceilings_of_other_formats_of_the_dense_layers_are_shown(run):
    answer = json.loads(run("roofline", "--gpu", "DGX Spark", "--json").stdout)
    ceilings = {name: round(row["ceiling_tok_s"]) for name, row in answer["dense_formats"].items()}
    assert ceilings == {"bf16": 46, "q8_0": 65, "fp8": 67, "mxfp4": 84}
    [row] = [line for line in run("roofline", "--gpu", "gb10").stdout.splitlines() if " fp8 " in line]
    assert " 66.9 " in row and " no " in row


@pytest.mark.parametrize("name", ["gb10", "dgx-spark"])
def test_other_engines_are_shown_for_longer_names_of_the_gpu(run, name):
    assert "other engines, one request" in run("roofline", "--gpu", name).stdout


def test_other_engines_are_shown_beside_the_prediction(run):
    text = run("roofline", "--gpu", "gb10", "--dense", "mxfp4").stdout
    [row] = [line for line in text.splitlines() if "vLLM fork" in line]
    assert "165" in row and "71%" in row  # FACTS: 60 tok/s move 165 GB/s, 71 % of the probe
    assert "other engines" not in run("roofline", "--gpu", "b200").stdout


def test_page_has_every_chart(run, tmp_path):
    page = tmp_path / "page.html"
    result = run("roofline", "--gpu", "gb10", "--draft-tokens", "4", "--acceptance", "0.6", "--plot", str(page))
    assert result.exit_code == 0, result.output
    text = page.read_text()
    for words in (
        "Where the time goes",
        "moe_matmul gate_up",
        "Requests decoded together",
        "Acceptance from which",
    ):
        assert words in text, words
    assert "predicted, not yet run" in text and "<script" not in text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--gpu", "tpu"], "there is no GPU 'tpu' in the table; it has gb10, h100, h200, b200, 5090, pro6000"),
        (["--gpu", "gb10", "--dense", "int8"], "dense = int8: must be one of bf16, q8_0, fp8, mxfp4"),
        (["--gpu", "gb10", "--model", "/gone"], "/gone is not a folder"),
        (["--gpu", "gb10", "--acceptance", "0.5"], "give --draft-tokens K too"),
        (["--gpu", "gb10", "--draft-tokens", "2", "--acceptance", "1.5"], "must lie between 0 and 1"),
        (["--gpu", "gb10", "--overlap", "2"], "overlap = 2.0: must lie between 0 and 1"),
    ],
)
def test_error_for_an_unknown_name_lists_the_known_ones(run, flags, message):
    result = run("roofline", *flags)
    assert isinstance(result.exception, UserError) and message in str(result.exception)


def test_prompts_are_predicted_beside_published_figures(run, rows_of):
    result = run("roofline", "--gpu", "gb10", "--dense", "mxfp4")
    [row] = [cells for cells in rows_of(result.stdout) if cells[:2] == ["8192", "mxfp8"]]
    assert row[5] == "7792" and row[7:] == ["6628", "predicted, not yet run"]
    assert "assumed for prompts: matrix rate: 1 PFLOP/s of sparse FP4" in result.stdout
    assert "nodes" not in result.stdout
    none = run("roofline", "--gpu", "gb10", "--prompts", "").stdout
    assert "prompt" not in none


def test_json_of_prompts_and_nodes_follows_every_flag(run):
    def asked(*flags):
        return json.loads(run("roofline", "--gpu", "gb10", "--dense", "mxfp4", "--json", *flags).stdout)

    plain = asked()
    assert plain["nodes"] is None and [row["tokens"] for row in plain["prompts"]] == [512, 2048, 8192] * 2
    assert plain["prompts"][2]["bound"] == "matrix" and len(plain["prompt_assumptions"]) == 5
    assert [row["tokens"] for row in asked("--prompts", "64")["prompts"]] == [64, 64]
    long, slow = asked("--step-tokens", "1024")["prompts"][2], asked("--matrix-share", "0.2")["prompts"][2]
    assert long["memory_ms"] > plain["prompts"][2]["memory_ms"]
    assert slow["matrix_ms"] == pytest.approx(2 * plain["prompts"][2]["matrix_ms"])
    two = asked("--nodes", "2")
    assert two["nodes"]["predicted_tok_s"] == pytest.approx(96.0, abs=0.05) and len(two["nodes_assumptions"]) == 3
    near = asked("--nodes", "2", "--link-us", "10", "--link-gb-s", "50")
    assert near["nodes"]["link_ms"] < 0.8 and "--link-us" in near["nodes_assumptions"][1]


def test_two_nodes_have_a_row(run, rows_of):
    result = run("roofline", "--gpu", "gb10", "--dense", "mxfp4", "--nodes", "2")
    assert ["2", "7.36", "3.06", "10.42", "96.0", "1.34 x", "predicted, not yet run"] in rows_of(result.stdout)
    assert "assumed for 2 nodes: vLLM's scheduling adds nothing" in result.stdout


def test_former_name_of_draft_tokens_works_with_a_warning(run):
    result = run("roofline", "--gpu", "gb10", "--speculate", "2", "--json")
    assert len(json.loads(result.stdout)["speculation"]) == 2
    assert result.stderr.startswith("warning: --speculate is now --draft-tokens")
    assert "--speculate" not in run("roofline", "--help").stdout

"""Verbs that examine the machine and count what a step costs."""

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
    assert plain["model"] == "gpt-oss-120b" and plain["gpu"] == "H200 SXM" and plain["speculation"] is None
    assert plain["bytes"] == pytest.approx(5.0e9, rel=1e-3) and plain["flops"] == pytest.approx(10.26e9, rel=1e-3)
    assert [round(one["ceiling_tok_s"]) for one in plain["predictions"]] == [959, 928]
    assert sum(op["matrix_bytes"] + op["vector_bytes"] + op["kv_bytes"] for op in plain["ops"]) == plain["bytes"]
    assert asked("--model", "gpt-oss-20b")["bytes"] == pytest.approx(3.71e9, rel=1e-3)
    assert asked("--dense", "q8_0")["bytes"] == pytest.approx(3.56e9, rel=2e-3)
    long, half = (asked("--context", "8192", "--kv", kv)["bytes"] for kv in ("bf16", "fp8"))
    assert long - plain["bytes"] == pytest.approx(307e6, rel=1e-2) and long - half == pytest.approx(153e6, rel=1e-2)
    assert asked("--batch", "8")["distinct_experts"] == pytest.approx(28.7, abs=0.05)
    assert asked("--batch", "8", "--experts", "20")["distinct_experts"] == 20
    assert asked("--share", "0.5")["predictions"][0]["predicted_tok_s"] == pytest.approx(959.4 / 2, rel=1e-3)
    assert asked("--draft", "3")["speculation"]["cost"] == pytest.approx(2.07, abs=0.005)


def test_roofline_takes_a_checkpoint_and_tells_when_drafts_gain(run, checkpoint):
    result = run("roofline", "--gpu", "5090", "--model", str(checkpoint), "--draft", "2")
    assert result.exit_code == 0, result.output
    assert "2 drafted: a verifying step costs" in result.stdout and "gains from an acceptance of" in result.stdout


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--gpu", "tpu"], "there is no GPU 'tpu' in the table; it has gb10, h100, h200, b200, 5090, pro6000"),
        (["--gpu", "gb10", "--dense", "int8"], "dense = int8: must be one of bf16, q8_0, fp8, mxfp4"),
        (["--gpu", "gb10", "--model", "/gone"], "/gone is not a folder"),
    ],
)
def test_roofline_names_what_it_does_not_know(run, flags, message):
    result = run("roofline", *flags)
    assert isinstance(result.exception, UserError) and message in str(result.exception)

"""The command line, in process and as a user starts it."""

import json
import os
import subprocess
import sys

import huggingface_hub.constants
import pytest
from typer.testing import CliRunner

from firesteel import SamplingParams, UserError
from firesteel.cli import app, main
from firesteel.config import knobs
from firesteel.kernels import ALL_OPS

FAST = ["--device", "cpu", "--memory-reserve-gib", "0"]
# name -> flag that sets a value, the value; text of a variable, the value; line of a file, the value
SETTINGS = {
    "model": (["--model", "here"], "here", "there", "there", '"elsewhere"', "elsewhere"),
    "device": (["--device", "cpu"], "cpu", "cuda:1", "cuda:1", '"cuda"', "cuda"),
    "max_model_len": (["--max-model-len", "5"], 5, "6", 6, "7", 7),
    "load_workers": (["--load-workers", "5"], 5, "6", 6, "7", 7),
    "memory_reserve_gib": (["--memory-reserve-gib", "0.5"], 0.5, "6", 6.0, "7", 7.0),
    "kernels": (["--kernels", "a=b"], "a=b", "c=d", "c=d", '"e=f"', "e=f"),
    "sinks": (["--no-sinks"], False, "off", False, "false", False),
    "page_size": (["--page-size", "16"], 16, "32", 32, "128", 128),
    "max_num_seqs": (["--max-num-seqs", "5"], 5, "6", 6, "7", 7),
    "max_num_batched_tokens": (["--max-num-batched-tokens", "5"], 5, "6", 6, "7", 7),
    "kv_cache_gib": (["--kv-cache-gib", "0.5"], 0.5, "6", 6.0, "7", 7.0),
    "kv_dtype": (["--kv-dtype", "fp8"], "fp8", "bf16", "bf16", '"fp8"', "fp8"),
    "prefix_caching": (["--no-prefix-caching"], False, "off", False, "false", False),
}


def run(*arguments, **environment):
    return CliRunner().invoke(app, [*arguments], env=environment)


def start(*arguments, **environment):
    """firesteel in a process of its own, through its entry point."""
    command = [sys.executable, "-W", "error", "-c", "from firesteel.cli import main; main()", *arguments]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8", **environment}
    return subprocess.run(command, capture_output=True, encoding="utf-8", env=variables, timeout=60)


def shown(result):
    """Rows of `env --json` by name."""
    assert result.exit_code == 0, result.output
    return {row["name"]: row for row in json.loads(result.stdout)}


def test_generate_prints_the_text_of_llm_generate(llm, checkpoint):
    params = SamplingParams(max_tokens=20, temperature=0.8, seed=5)
    expected = llm.generate(["héllo"], params)[0].text
    result = run(
        "generate", "--model", str(checkpoint), "--prompt", "héllo", "--max-tokens", "20", "--temperature", "0.8",
        "--seed", "5", *FAST,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert result.stdout_bytes.decode() == expected + "\n"
    assert "GB/s" in result.stderr and "GB/s" not in result.stdout


def test_generate_is_greedy_unless_told(llm, checkpoint):
    expected = llm.generate(["abc"], SamplingParams(max_tokens=9))[0].text
    result = run("generate", "--model", str(checkpoint), "--prompt", "abc", "--max-tokens", "9", *FAST)
    assert result.stdout_bytes.decode() == expected + "\n"


def test_generate_writes_each_piece_as_it_is_made(monkeypatch):
    class Told:
        def __init__(self):
            self.ledger = self

        def stream(self, prompt, params):
            for piece in "abc":
                events.append(f"made {piece}")
                yield piece

    class Terminal:
        encoding = "utf-8"

        def write(self, text):
            events.append(f"wrote {text}")

        def flush(self):
            events.append("flushed")

        def isatty(self):
            return False

    events = []
    monkeypatch.setattr("firesteel.cli.load", lambda knobs: Told())
    monkeypatch.setattr(sys, "stdout", Terminal())
    app(["generate", "--prompt", "x"], standalone_mode=False)
    assert events[:6] == ["made a", "wrote a", "flushed", "made b", "wrote b", "flushed"]


def test_ledger_names_every_op_with_calls_and_time(checkpoint):
    asked = ["generate", "--model", str(checkpoint), "--prompt", "abc", "--max-tokens", "2", *FAST]
    table = run(*asked, "--ledger").stdout
    for op in ALL_OPS:
        row = next(line for line in table.splitlines() if f" {op.name} " in line)
        _, implementation, calls, total_ms, each_us = (cell.strip() for cell in row.strip("│").split("│"))
        assert implementation == "reference" and int(calls) > 0
        assert float(total_ms) >= 0 and float(each_us) > 0
    assert "reference" not in run(*asked).stdout


@pytest.mark.parametrize("name", SETTINGS)
def test_env_shows_value_and_origin_of_flag_variable_file_and_default(name, tmp_path):
    knob = knobs()[name]
    flag, by_flag, text, by_variable, line, by_file = SETTINGS[name]
    file = tmp_path / "firesteel.toml"
    file.write_text(f"{name} = {line}\n")
    in_file = {"FIRESTEEL_CONFIG": str(file)}
    in_both = {**in_file, knob.env: text}
    rows = [
        shown(run("env", "--json", *flag, **in_both))[name], shown(run("env", "--json", **in_both))[name],
        shown(run("env", "--json", **in_file))[name], shown(run("env", "--json"))[name],
    ]  # fmt: skip
    assert [(row["value"], row["origin"]) for row in rows] == [
        (by_flag, "flag"), (by_variable, f"environment {knob.env}"), (by_file, f"file {file}"),
        (knob.default, "default"),
    ]  # fmt: skip


def test_every_knob_is_in_the_tests_above():
    assert set(SETTINGS) == set(knobs())


def test_flag_turns_back_on_what_the_environment_turned_off():
    row = shown(run("env", "--json", "--sinks", FIRESTEEL_SINKS="off"))["sinks"]
    assert (row["value"], row["origin"]) == (True, "flag")


def test_env_table_has_every_setting_whole():
    """Long names were cut off with an ellipsis, and brackets in a value vanished as markup."""
    result = run("env", "--model", "/models/[bold]x", FIRESTEEL_MAX_NUM_BATCHED_TOKENS="77")
    for knob in knobs().values():
        assert f" {knob.name} " in result.stdout and f" {knob.env} " in result.stdout
    row = next(line for line in result.stdout.splitlines() if "max_num_batched_tokens" in line)
    assert " 77 " in row and " environment FIRESTEEL_MAX_NUM_BATCHED_TOKENS " in row
    assert "/models/[bold]x" in result.stdout


@pytest.mark.parametrize("command", ["generate", "env"])
def test_help_shows_flag_default_and_variable_of_every_knob(command):
    """Defaults and variables stood in square brackets, which the help took for markup and left out."""
    text = " ".join(run(command, "--help", COLUMNS="300", TERMINAL_WIDTH="300").stdout.split())
    for knob in knobs().values():
        default = "none" if knob.default == "" else knob.default
        assert f"--{knob.name.replace('_', '-')} " in text
        assert f"{knob.help} (default {default}; {knob.env})" in text
    assert "--no-sinks" in text


@pytest.mark.parametrize("command", [["env"], ["generate", "--prompt", "x"]])
def test_unknown_flag_is_an_error_that_names_the_nearest(command):
    result = run(*command, "--page-siz", "16")
    assert result.exit_code == 2
    assert "--page-siz" in result.stderr and "--page-size" in result.stderr.replace("--page-siz ", "")


def test_flag_of_the_wrong_type_is_an_error():
    result = run("env", "--page-size", "many")
    assert result.exit_code == 2 and "--page-size" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["env"], {"FIRESTEEL_PAGESIZE": "1"}, "did you mean FIRESTEEL_PAGE_SIZE?"),
        (["env", "--page-size", "24"], {}, "page_size = 24 (flag): must be a power of two"),
        (["generate", "--prompt", "x", "--model", "/gone"], {}, "/gone is not a folder"),
        (["generate", "--prompt", "x", "--max-tokens", "0"], {}, "max_tokens = 0: must be at least 1"),
    ],
)
def test_what_the_user_can_mend_is_a_user_error(arguments, environment, message):
    result = run(*arguments, **environment)
    assert isinstance(result.exception, UserError)
    assert message in str(result.exception)


def test_entry_point_generates(llm, checkpoint):
    expected = llm.generate(["abc"], SamplingParams(max_tokens=9))[0].text
    result = start("generate", "--model", str(checkpoint), "--prompt", "abc", "--max-tokens", "9", *FAST)
    assert result.returncode == 0, result.stderr
    assert result.stdout.replace("\r", "\n") == (expected + "\n").replace("\r", "\n")


def test_entry_point_shows_a_user_error_in_one_line_without_traceback(tmp_path):
    """Long messages were wrapped at 80 columns, brackets vanished as markup, an empty line came first."""
    missing = tmp_path / "[red]" / ("long" * 30)
    result = start("generate", "--prompt", "x", "--model", str(missing), *FAST)
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr.startswith(f"error: {missing} is not a folder") and result.stderr.count("\n") == 1


def test_missing_model_says_how_to_get_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["firesteel", "generate", "--prompt", "x", "--model", "gpt-oss-20b"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert "hf download openai/gpt-oss-20b" in error and error.count("\n") == 1


def test_roofline_prints_the_ceiling_and_every_op():
    text = run("roofline", "--model", "gpt-oss-120b", "--gpu", "gb10", "--dense", "mxfp4").stdout
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if "│" in line]
    parts = [row[:2] for row in rows]
    for part in (["linear", "qkv"], ["linear", "lm_head"], ["moe_matmul", "gate_up"], ["attention", "all"]):
        assert part in parts
    total = next(row for row in rows if row[0] == "all")
    assert (total[3], total[-1]) == ("2749.0", "11849.0")
    assert ["measured read", "232", "11.849", "84.4", "85 %", "71.7", "predicted, not yet run"] in rows
    assert "drafted" not in text


def test_roofline_json_follows_every_flag():
    def asked(*flags):
        result = run("roofline", "--gpu", "h200", "--json", *flags)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    plain = asked()
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


def test_roofline_takes_a_checkpoint_and_tells_when_drafts_gain(checkpoint):
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
def test_roofline_names_what_it_does_not_know(flags, message):
    result = run("roofline", *flags)
    assert isinstance(result.exception, UserError) and message in str(result.exception)

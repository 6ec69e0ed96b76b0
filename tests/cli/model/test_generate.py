"""The verb generate: its text, its ledger and its errors."""

import re
import sys
from types import SimpleNamespace

import huggingface_hub.constants
import pytest
import typer

from firesteel import SamplingParams, UserError
from firesteel.cli import app, main
from firesteel.cli.model.generate import show_agreement
from firesteel.kernels.registry import NETWORK_OPS

FAST = ["--device", "cpu", "--memory-reserve-gib", "0"]


def test_generate_prints_the_text_of_llm_generate(run, llm, checkpoint):
    params = SamplingParams(max_tokens=20, temperature=0.8, seed=5)
    expected = llm.generate(["héllo"], params)[0].text
    result = run(
        "generate",
        "--model",
        str(checkpoint),
        "--prompt",
        "héllo",
        "--max-tokens",
        "20",
        "--temperature",
        "0.8",
        "--seed",
        "5",
        *FAST,
    )
    assert result.exit_code == 0, result.output
    assert result.stdout_bytes.decode() == expected + "\n"
    assert "GB/s" in result.stderr and "GB/s" not in result.stdout


def test_generate_is_greedy_by_default(run, llm, checkpoint):
    expected = llm.generate(["abc"], SamplingParams(max_tokens=9))[0].text
    result = run("generate", "--model", str(checkpoint), "--prompt", "abc", "--max-tokens", "9", *FAST)
    assert result.stdout_bytes.decode() == expected + "\n"


def test_generate_writes_each_piece_as_it_is_made(monkeypatch):
    class Told:
        def __init__(self):
            self.ledger = lambda: self

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
    monkeypatch.setattr("firesteel.cli.model.load.load", lambda settings: Told())
    monkeypatch.setattr(sys, "stdout", Terminal())
    app(["generate", "--prompt", "x"], standalone_mode=False)
    assert events[:6] == ["made a", "wrote a", "flushed", "made b", "wrote b", "flushed"]


def test_generate_with_a_ledger_switches_graphs_off(monkeypatch):
    """A graph hides the times of its kernels."""
    asked = []

    def told(settings):
        asked.append(settings)
        raise UserError("enough")

    monkeypatch.setattr("firesteel.cli.model.load.load", told)
    for flags in ([], ["--ledger"], ["--ledger", "--cuda-graphs"]):
        with pytest.raises(UserError, match="enough"):
            app(["generate", "--prompt", "x", *flags], standalone_mode=False)
    assert asked == [{}, {"cuda_graphs": False}, {"cuda_graphs": True}]


def test_text_is_an_argument_or_an_option_but_not_both(monkeypatch):
    def stream(text, params):
        asked.append(text)
        return iter(())

    asked = []
    llm = SimpleNamespace(stream=stream, ledger=lambda: SimpleNamespace(timed=False))
    monkeypatch.setattr("firesteel.cli.model.load.load", lambda settings: llm)
    app(["generate", "one"], standalone_mode=False)
    app(["generate", "--prompt", "two"], standalone_mode=False)
    for wrong in ([], ["one", "--prompt", "two"]):
        with pytest.raises(UserError, match="give one text to continue"):
            app(["generate", *wrong], standalone_mode=False)
    assert asked == ["one", "two"]


def test_ledger_names_every_op_with_calls_and_time(run, checkpoint):
    asked = ["generate", "--model", str(checkpoint), "--prompt", "abc", "--max-tokens", "2", *FAST]
    table = run(*asked, "--temperature", "1", "--ledger").stdout
    for op in (op for op in NETWORK_OPS if op.name != "rms_norm_fed"):  # references read plain rows
        row = next(line for line in table.splitlines() if f" {op.name} " in line)
        _, implementation, activation, calls, *times = map(str.strip, row.strip("│").split("│"))
        assert implementation == "reference" and int(calls) > 0 and len(times) == 2  # nothing clipped, no kernels
        assert activation == ("bf16" if op.rounds_activations else "")
        assert float(times[0]) >= 0 and float(times[1]) > 0
    assert "reference" not in run(*asked).stdout


def test_entry_point_generates(start, llm, checkpoint):
    expected = llm.generate(["abc"], SamplingParams(max_tokens=9))[0].text
    result = start("generate", "--model", str(checkpoint), "--prompt", "abc", "--max-tokens", "9", *FAST)
    assert result.returncode == 0, result.stderr
    assert result.stdout.replace("\r", "\n") == (expected + "\n").replace("\r", "\n")


def test_error_for_a_missing_model_says_how_to_fetch_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["firesteel", "generate", "--prompt", "x", "--model", "gpt-oss-20b"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert "`firesteel pull gpt-oss-20b`" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("differences", "code", "line"),
    [([], 0, "agree: 7 launches"), (["fc1: the ledger has 2 launches, the profiler saw 1"], 1, "differ: fc1: the")],
)
def test_disagreement_with_the_profiler_exits_with_1(capsys, differences, code, line):
    watch = SimpleNamespace(differences=differences, count=7)
    if code:
        with pytest.raises(typer.Exit) as caught:
            show_agreement(watch)
        assert caught.value.exit_code == code
    else:
        show_agreement(watch)
    shown = capsys.readouterr()
    assert line in (shown.err if code else shown.out)


@pytest.mark.gpu
def test_profiler_agrees_with_the_ledger_on_a_gpu(run):
    asked = ["generate", "--prompt", "The capital of", "--max-tokens", "4", "--ledger", "--device", "cuda"]
    result = run(*asked, "--kernels", "rms_norm=triton,attention=triton,moe=triton")
    assert result.exit_code == 0, result.output
    agreed = re.search(r"ledger and profiler agree: (\d+) launches", result.stdout)
    assert agreed and int(agreed[1]) > 10
    assert re.search(r"\d+ x rms_norm_kernel .*[0-9a-f]{8} none", result.stdout)

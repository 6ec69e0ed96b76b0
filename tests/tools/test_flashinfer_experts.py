"""FlashInfer's experts at the sizes of gpt-oss-120b: the cases, and what a row says of one that ends badly."""

import subprocess
from types import SimpleNamespace

import pytest
import torch

import flashinfer_experts
from firesteel.kernels.libraries import flashinfer_moe
from firesteel.kernels.ops.moe_matmul import moe_matmul
from flashinfer_experts import Case, draw, main, run_case


@pytest.fixture
def small(monkeypatch):
    """Small experts on the CPU, and a library whose tile 1 reads behind the last expert."""
    for name, value in (("EXPERTS", 8), ("SIZE", 96), ("DEVICE", "cpu")):
        monkeypatch.setattr(flashinfer_experts, name, value)
    calls = []

    def prepare(x, ids, weights, experts, alpha, limit):
        def call(profile):
            calls.append(profile)
            if profile[0] == 1 and (ids == 7).any():
                raise torch.AcceleratorError("an illegal memory access was encountered")
            return torch.zeros(len(x), experts.padded_hidden, dtype=torch.bfloat16)

        return call

    library = SimpleNamespace(jit=SimpleNamespace(jit_spec_registry=SimpleNamespace(get_all_specs=dict)))
    monkeypatch.setattr(flashinfer_moe, "import_flashinfer", lambda: library)
    monkeypatch.setattr(flashinfer_moe, "prepare_call", prepare)
    monkeypatch.setattr(flashinfer_moe, "list_tiles", lambda experts, active: ([0], [2]))
    monkeypatch.setattr(
        flashinfer_moe, "find_runner", lambda experts, active: SimpleNamespace(get_gemm1_tactic_count=lambda: 2)
    )
    monkeypatch.setattr(flashinfer_moe, "_time", lambda call, profile: 0.0)
    monkeypatch.setattr(flashinfer_moe, "_profiles", {})
    return calls


def test_last_expert_is_among_the_ids_or_not(small):
    for tokens in (1, 5):
        assert 7 in draw(Case("bf16", tokens)).ids
        assert 7 not in draw(Case("bf16", tokens, has_last=False)).ids


def test_results_are_held_to_the_reference(small, monkeypatch):
    with pytest.raises(AssertionError, match="rms 1 "):
        run_case(Case("bf16", 3))
    case = Case("bf16", 3)
    right = moe_matmul.reference(draw(case))
    padded = torch.nn.functional.pad(right, (0, 32))
    monkeypatch.setattr(flashinfer_moe, "prepare_call", lambda *inputs: lambda profile: padded)
    assert run_case(case) == "tiles (0, 2); largest error 0.0000, rms 0.0000"


def test_tile_that_does_not_fit_is_run_once(small):
    assert run_case(Case("fp8", 2, tile=1, has_last=False)) == "ended without an error"
    assert small.count((1, 2)) == 1
    with pytest.raises(torch.AcceleratorError):
        run_case(Case("fp8", 2, tile=1))


def run(monkeypatch, arguments, ends):
    """Runs the tool with processes that end as `ends` says; returns their commands and the exit status."""
    commands = []

    def end(command, **options):
        commands.append(command)
        if (ended := ends(command)) is None:
            raise subprocess.TimeoutExpired(command, 1)
        return SimpleNamespace(returncode=ended[0], stdout="", stderr=ended[1])

    monkeypatch.setattr(flashinfer_experts.subprocess, "run", end)
    monkeypatch.setattr("sys.argv", ["flashinfer_experts.py", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    return commands, left.value.code


def test_each_case_has_a_process_and_a_row(monkeypatch, capsys):
    def ends(command):
        return (0, "fine") if command[-3] == "1" else (1, "KernelError: illegal access\nCompile with DSA\n")

    commands, status = run(monkeypatch, ["--tokens", "1,64", "--kind", "bf16"], ends)
    assert [command[-4:] for command in commands] == [["bf16", "1", "-1", "1"], ["bf16", "64", "-1", "1"]]
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].endswith("| fine | right |") and shown[1].endswith("| KernelError: illegal access | WRONG |")
    assert "64 tokens, tiles that fit, with the last expert" in shown[1] and status


def test_sanitizer_wraps_each_process_and_time_is_bounded(monkeypatch, capsys):
    commands, status = run(monkeypatch, ["--tokens", "64", "--sanitize"], lambda command: None)
    assert len(commands) == 2 and all(command[0] == "compute-sanitizer" for command in commands) and status
    assert "not done after 300 s" in capsys.readouterr().out


def test_tiles_that_do_not_fit_may_end_badly(small, monkeypatch, capsys):
    commands, status = run(monkeypatch, ["--unfit", "--kind", "fp8"], lambda command: (1, "illegal memory access"))
    assert [command[-4:] for command in commands] == [["fp8", "1", "1", "0"], ["fp8", "1", "1", "1"]]
    assert not status and "tile 1, which does not fit, without the last expert" in capsys.readouterr().out


def test_a_case_is_run_in_the_process_that_is_given_it(small, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["flashinfer_experts.py", "--case", "bf16", "2", "1", "0"])
    main()
    assert capsys.readouterr().out == "ended without an error\n"

"""The parts of a report: their order, their commands, and what is left out."""

from dataclasses import replace
from pathlib import Path

import pytest
from typer.main import get_command

from firesteel.cli import app
from firesteel.device import GIB, find_device
from firesteel.spark_report.parts import list_parts, proof_target, why_not_decoded

CPU = find_device("cpu")
GB10 = replace(CPU, name="NVIDIA GB10", capability=(12, 1), num_sms=48, memory_bytes=119 * GIB, is_unified=True)
H200 = replace(GB10, name="NVIDIA H200", capability=(9, 0), num_sms=132, memory_bytes=139 * GIB, is_unified=False)
FOLDER, MODEL = Path("/out"), Path("/models/gpt-oss-120b")


def flag(arguments, name):
    return arguments[arguments.index(name) + 1]


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("model", [None, MODEL])
def test_the_most_valuable_part_is_first(quick, model):
    """One request of 120b with all layers in MXFP4; once it was the last of ten parts."""
    first = list_parts(GB10, FOLDER, quick=quick, model=model)[0]
    assert first.arguments[:4] == ("bench", "decode", "--synthetic", "gpt-oss-120b")
    assert flag(first.arguments, "--batch") == "1" and flag(first.arguments, "--mxfp4-layers") == "qkv,o,lm_head"


def test_a_smaller_gpu_begins_with_the_model_that_fits():
    first = list_parts(replace(GB10, memory_bytes=24 * GIB), FOLDER, quick=False)[0]
    assert flag(first.arguments, "--synthetic") == "gpt-oss-20b"


def test_report_of_a_gpu_times_every_activation_batch_and_prompt_length():
    """Once only bf16 activations were timed and no steps: nothing that is special to GB10."""
    parts = [part.arguments for part in list_parts(GB10, FOLDER, quick=False)]
    ops = [arguments for arguments in parts if arguments[:2] == ("bench", "ops")]
    assert [flag(arguments, "--activation") for arguments in ops] == ["bf16", "mxfp8", "mxfp4"]
    large = [arguments for arguments in parts if "gpt-oss-120b" in arguments]
    layers = {flag(command, "--mxfp4-layers") for command in large if command[1] == "decode"}
    assert layers == {"qkv,o,lm_head", ""}
    packed = [command for command in large if command[1] == "decode" and flag(command, "--mxfp4-layers")]
    assert {int(size) for command in packed for size in flag(command, "--batch").split(",")} == set(range(1, 9))
    prompts = [command for command in large if command[1] == "prefill"]
    assert {flag(command, "--tokens") for command in prompts} == {"512,2048,8192"}
    assert flag(prompts[0], "--preset") == "spark"  # as `firesteel serve` chooses on a GB10
    assert [flag(command, "--prefill-activation") for command in prompts[1:]] == ["mxfp8", "bf16"]
    folders = [flag(arguments, "--out") for arguments in parts if "--out" in arguments]
    assert len(set(folders)) == len(folders)  # a plot would overwrite another's


def test_mxfp8_prompts_are_timed_where_the_instruction_exists():
    parts = [part.arguments for part in list_parts(H200, FOLDER, quick=False) if part.arguments[1] == "prefill"]
    assert {flag(command, "--prefill-activation") for command in parts} == {"bf16"}
    assert not any("--preset" in command for command in parts)


def test_a_real_checkpoint_adds_its_parts_before_the_long_ones():
    plain, real = (list_parts(GB10, FOLDER, quick=False, model=model) for model in (None, MODEL))
    added = [part for part in real if part.name not in {other.name for other in plain}]
    assert [part.name for part in added] == [
        "model-prefill",
        "model-decode",
        "model-engine",
        "model-serve",
        "model-llama-benchy",
        "model-quality",
    ]
    assert real[2:8] == added and all(flag(part.arguments, "--model") == str(MODEL) for part in added)
    serve, benchy, quality = added[3:]
    assert benchy.arguments[:2] == ("lab", "benchy") and flag(benchy.arguments, "--depth") == "0,4096,16384"
    assert serve.arguments[:4] == ("lab", "run", "--level", "4") and serve.result_file == "result.json"
    assert flag(quality.arguments, "--precision") == "all MXFP4"  # compared with the checkpoint as shipped


def test_a_cpu_gets_sizes_of_a_real_checkpoint_that_it_can_compute():
    """Once a CPU was given prompts of 8192 tokens, and the part did not end in an hour."""
    for quick in (False, True):
        parts = {part.name: part.arguments for part in list_parts(CPU, FOLDER, quick=quick, model=MODEL)}
        assert {"model-prefill", "model-engine", "model-serve", "model-llama-benchy"} <= parts.keys()
        assert "model-decode" not in parts  # list_left_out says why
        assert max(map(int, flag(parts["model-prefill"], "--tokens").split(","))) <= 64
        assert int(flag(parts["model-engine"], "--requests")) <= 2
        assert "--quick" in parts["model-serve"]
        assert flag(parts["model-llama-benchy"], "--depth") == "0,512"


def test_every_part_has_expected_minutes_and_quick_has_fewer():
    parts = {part.name: part.minutes for part in list_parts(GB10, FOLDER, quick=False, model=MODEL)}
    quick = {part.name: part.minutes for part in list_parts(GB10, FOLDER, quick=True, model=MODEL)}
    assert all(minutes > 0 for minutes in parts.values()) and len(quick) < len(parts)
    assert all(minutes < parts[name] for name, minutes in quick.items())


def test_quick_runs_less_and_plots_need_their_libraries(monkeypatch):
    long = {part.name: part.arguments for part in list_parts(CPU, FOLDER, quick=False)}
    quick = {part.name: part.arguments for part in list_parts(CPU, FOLDER, quick=True)}
    assert "--quick" in quick["verify"] and "--quick" not in long["verify"]
    assert "--m" in quick["bench-bf16"] and "--m" not in long["bench-bf16"]
    assert "--no-plot" not in long["bench-bf16"]
    monkeypatch.setattr("firesteel.plot.LIBRARIES", {"gone": "gone"})
    benches = [part for part in list_parts(GB10, FOLDER, quick=True) if part.name.startswith(("bench", "decode"))]
    assert len(benches) == 4 and all("--no-plot" in part.arguments for part in benches)


@pytest.mark.parametrize(
    ("device", "quick", "left_out"),
    [
        (GB10, False, {}),
        (GB10, True, {"gpt-oss-20b": "--quick times the largest model only"}),
        (replace(GB10, memory_bytes=24 * GIB), True, {"gpt-oss-120b": "needs 80 GiB, NVIDIA GB10 has 24"}),
        (CPU, False, dict.fromkeys(("gpt-oss-20b", "gpt-oss-120b"), "steps are timed on a GPU only")),
    ],
)
def test_models_whose_steps_are_not_timed_have_a_reason(device, quick, left_out):
    commands = [part.arguments for part in list_parts(device, FOLDER, quick=quick)]
    for model in ("gpt-oss-20b", "gpt-oss-120b"):
        assert why_not_decoded(model, device, quick=quick) == left_out.get(model)
        assert any(model in command for command in commands) == (model not in left_out)


@pytest.mark.parametrize("device", [CPU, GB10, H200])
@pytest.mark.parametrize("quick", [False, True])
def test_every_part_is_a_valid_command(device, quick):
    """An unknown flag would fail the part on the very machine that the report is for."""
    for part in list_parts(device, FOLDER, quick=quick, model=MODEL):
        command, words = get_command(app), list(part.arguments)
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        command.make_context(part.name, words)


def test_proofs_are_for_this_gpu_or_for_gb10():
    assert proof_target(CPU) == "sm_121a"
    assert proof_target(replace(CPU, capability=(9, 0))) == "sm_90a"
    assert proof_target(replace(CPU, capability=(7, 5))) == "sm_121a"

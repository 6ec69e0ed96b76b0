"""The verb tune: its requirements, measurements and output file."""

import json
import os
from dataclasses import replace

import pytest

from firesteel.device import find_device
from firesteel.kernels.tiles import tuned
from firesteel.measure.ops.tune import Tuner, TuningChoice

GPU = replace(find_device("cpu"), name="NVIDIA H200", capability=(9, 0))


@pytest.fixture
def on_gpu(monkeypatch):
    """Returns prepared choices without measuring."""
    asked = {}

    def tune_ops(workloads, device, *, progress, keep, earlier):
        asked.update({name: [case.label for case in cases] for name, cases in workloads.items()})
        choices = [TuningChoice(what="moe", m=(32,), chosen="16x64", before_s=2e-6, chosen_s=1e-6)]
        tuner = Tuner(device, None, tiles={"linear bf16 64x32": {32: "16x64"}}, choices=choices, earlier=earlier)
        keep(tuner.tuned)
        return tuner

    monkeypatch.setattr("firesteel.device.find_device", lambda name: GPU)
    monkeypatch.setattr("firesteel.measure.ops.memory.too_large", lambda *_: None)
    monkeypatch.setattr("firesteel.measure.ops.tune.tune_ops", tune_ops)
    monkeypatch.setattr(tuned, "surroundings", lambda device: {"gpu": device.name})
    monkeypatch.setattr("firesteel.kernels.operands.shapes.ModelShapes", lambda spec, device: FakeShapes(spec))
    return asked


class FakeShapes:
    """Draws nothing."""

    expert_copies, experts_bytes = 1, 1

    def __init__(self, spec):
        self.spec = spec

    def weight(self, *shape): ...

    mxfp4_weight = weight

    def token_bytes(self):
        return 1


def test_error_on_a_cpu_says_that_a_gpu_is_needed(run, tmp_path):
    result = run("tune", "--device", "cpu", "--out", str(tmp_path / "tiles.json"))
    assert result.exit_code != 0 and "measured on an NVIDIA GPU, this is CPU" in str(result.exception)


def test_file_and_table_have_the_chosen_tiles(run, on_gpu, tmp_path):
    path = tmp_path / "tiles.json"
    result = run("tune", "--op", "linear", "--m", "32", "--out", str(path))
    assert result.exit_code == 0, result.output
    assert on_gpu == {
        "linear": [
            f"{part} M=32 bf16"
            for part in ("qkv bf16", "qkv mxfp4", "o bf16", "o mxfp4", "lm_head bf16", "lm_head mxfp4")
        ]
    }
    assert tuned.read_tuned(path, GPU).tiles == {"linear bf16 64x32": {32: "16x64"}}
    assert "50.0 %" in result.stdout and "--tiles-file" in result.stderr


def test_tiles_of_other_ops_in_the_file_are_kept(run, on_gpu, tmp_path):
    path = tmp_path / "tiles.json"
    tiles, options = {"moe_matmul bf16 2x32x32": {64: "64x64"}}, {"attend TILE_KEYS=64": {"num_warps": 8}}
    tuned.write_tuned(path, tuned.Tuned(tiles, options), GPU)
    result = run("tune", "--op", "linear", "--m", "32", "--out", str(path))
    assert result.exit_code == 0 and "replaced" not in result.stderr
    written = tuned.read_tuned(path, GPU)
    assert written.tiles == {**tiles, "linear bf16 64x32": {32: "16x64"}} and written.options == options


def test_tiles_of_another_gpu_are_replaced_with_a_message(run, on_gpu, tmp_path):
    path = tmp_path / "tiles.json"
    elsewhere = replace(GPU, name="NVIDIA GB10")
    tuned.write_tuned(path, tuned.Tuned({"moe_matmul bf16 2x32x32": {64: "64x64"}}), elsewhere)
    result = run("tune", "--op", "linear", "--m", "32", "--out", str(path))
    assert result.exit_code == 0
    assert "was measured with gpu NVIDIA GB10: it will be replaced" in " ".join(result.stderr.split())
    assert tuned.read_tuned(path, GPU).tiles == {"linear bf16 64x32": {32: "16x64"}}


@pytest.mark.parametrize("text", ["all I wrote today", '{"format": "mine"}', '{"format": "firesteel-ti'])
def test_file_with_other_content_is_not_replaced(run, on_gpu, text, tmp_path):
    path = tmp_path / "notes.json"
    path.write_text(text)
    result = run("tune", "--out", str(path))
    assert (
        result.exit_code != 0
        and f"--out {path} is unreadable or not a file of tiles: choose another file" in str(result.exception)
    )
    assert path.read_text() == text and not on_gpu


def test_empty_file_is_filled(run, on_gpu, tmp_path):
    path = tmp_path / "made by mktemp"
    path.touch()
    assert run("tune", "--op", "linear", "--m", "32", "--out", str(path)).exit_code == 0
    assert tuned.read_tuned(path, GPU).tiles


def test_obsolete_tiles_are_replaced_with_a_message(run, on_gpu, tmp_path):
    path = tmp_path / "tiles.json"
    tuned.write_tuned(path, tuned.Tuned({}, {"attend TILE_KEYS=64": {"num_warps": 3}}), GPU)
    result = run("tune", "--op", "linear", "--m", "32", "--out", str(path))
    assert result.exit_code == 0 and "has values that no kernel accepts" in " ".join(result.stderr.split())
    assert not tuned.read_tuned(path, GPU).options


def test_json_lists_every_choice(run, on_gpu, tmp_path):
    result = run("tune", "--json", "--out", str(tmp_path / "tiles.json"))
    assert result.exit_code == 0, result.exception
    assert json.loads(result.stdout)[0]["chosen"] == "16x64"
    assert set(on_gpu) == {"moe_matmul", "linear", "attention", "route"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--op", "rms_norm"], "firesteel tune measures moe_matmul, linear, attention, route"),
        (["--activation", "fp3"], "must be one of"),
        (["--m", "x"], "--m x"),
        (["--out", "no/such/folder/tiles.json"], "must be a file in an existing folder"),
    ],
)
def test_invalid_arguments_are_refused(run, on_gpu, flags, message, tmp_path):
    result = run("tune", "--out", str(tmp_path / "tiles.json"), *flags)
    assert result.exit_code != 0 and message in str(result.exception)
    assert not (tmp_path / "tiles.json").exists()


def test_path_that_is_not_a_regular_file_is_refused(run, on_gpu, tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    result = run("tune", "--out", str(path))
    assert result.exit_code != 0 and "must be a file in an existing folder" in str(result.exception)
    assert path.is_fifo() and not on_gpu

"""The verb tune: what it needs, what it measures, and the file it writes."""

import json
import os
from dataclasses import replace

import pytest

from firesteel.cli.machine import tune as verb
from firesteel.device import find_device
from firesteel.kernels.tiles import tuned
from firesteel.measure.ops.tune import Found, Tuner

GPU = replace(find_device("cpu"), name="NVIDIA H200", capability=(9, 0))


@pytest.fixture
def on_gpu(monkeypatch):
    """Measures nothing; gives what was asked for."""
    asked = {}

    def tune_ops(workloads, device, *, progress, keep, earlier):
        asked.update({name: [one.label for one in some] for name, some in workloads.items()})
        found = [Found(what="moe", m=(32,), chosen="16x64", before_s=2e-6, chosen_s=1e-6)]
        tuner = Tuner(device, None, tiles={"linear bf16 64x32": {32: "16x64"}}, found=found, earlier=earlier)
        keep(tuner.tuned)
        return tuner

    monkeypatch.setattr(verb, "find_device", lambda name: GPU)
    monkeypatch.setattr(verb, "too_large", lambda *_: None)
    monkeypatch.setattr(verb.tuning, "tune_ops", tune_ops)
    monkeypatch.setattr(tuned, "surroundings", lambda device: {"gpu": device.name})
    monkeypatch.setattr(verb, "Shapes", lambda spec, device: FakeShapes(spec))
    return asked


class FakeShapes:
    """Nothing is drawn."""

    expert_copies, experts_bytes = 1, 1

    def __init__(self, spec):
        self.spec = spec

    def weight(self, *shape): ...

    mxfp4_weight = weight

    def token_bytes(self):
        return 1


def test_cpu_is_told_that_a_gpu_is_needed(run, tmp_path):
    result = run("tune", "--device", "cpu", "--out", str(tmp_path / "tiles.json"))
    assert result.exit_code != 0 and "measured on an NVIDIA GPU, this is CPU" in str(result.exception)


def test_file_and_table_are_made_of_what_was_found(run, on_gpu, tmp_path):
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


def test_what_the_file_has_of_others_stays(run, on_gpu, tmp_path):
    path = tmp_path / "tiles.json"
    tiles, options = {"moe_matmul bf16 2x32x32": {64: "64x64"}}, {"attend TILE_KEYS=64": {"num_warps": 8}}
    tuned.write_tuned(path, tuned.Tuned(tiles, options), GPU)
    result = run("tune", "--op", "linear", "--m", "32", "--out", str(path))
    assert result.exit_code == 0 and "replaced" not in result.stderr
    found = tuned.read_tuned(path, GPU)
    assert found.tiles == {**tiles, "linear bf16 64x32": {32: "16x64"}} and found.options == options


def test_what_was_measured_elsewhere_is_replaced_and_said(run, on_gpu, tmp_path):
    path = tmp_path / "tiles.json"
    elsewhere = replace(GPU, name="NVIDIA GB10")
    tuned.write_tuned(path, tuned.Tuned({"moe_matmul bf16 2x32x32": {64: "64x64"}}), elsewhere)
    result = run("tune", "--op", "linear", "--m", "32", "--out", str(path))
    assert result.exit_code == 0
    assert "was measured with gpu NVIDIA GB10: it is replaced" in " ".join(result.stderr.split())
    assert tuned.read_tuned(path, GPU).tiles == {"linear bf16 64x32": {32: "16x64"}}


@pytest.mark.parametrize("text", ["all I wrote today", '{"format": "mine"}', '{"format": "firesteel-ti'])
def test_a_file_of_something_else_is_not_replaced(run, on_gpu, text, tmp_path):
    path = tmp_path / "notes.json"
    path.write_text(text)
    result = run("tune", "--out", str(path))
    assert (
        result.exit_code != 0
        and f"--out {path} cannot be read, or is a file of something else: name another" in str(result.exception)
    )
    assert path.read_text() == text and not on_gpu


def test_an_empty_file_is_written(run, on_gpu, tmp_path):
    path = tmp_path / "made by mktemp"
    path.touch()
    assert run("tune", "--op", "linear", "--m", "32", "--out", str(path)).exit_code == 0
    assert tuned.read_tuned(path, GPU).tiles


def test_what_no_kernel_takes_any_more_is_replaced_and_said(run, on_gpu, tmp_path):
    path = tmp_path / "tiles.json"
    tuned.write_tuned(path, tuned.Tuned({}, {"attend TILE_KEYS=64": {"num_warps": 3}}), GPU)
    result = run("tune", "--op", "linear", "--m", "32", "--out", str(path))
    assert result.exit_code == 0 and "has what no kernel takes" in " ".join(result.stderr.split())
    assert not tuned.read_tuned(path, GPU).options


def test_json_lists_every_choice(run, on_gpu, tmp_path):
    result = run("tune", "--json", "--out", str(tmp_path / "tiles.json"))
    assert json.loads(result.stdout)[0]["chosen"] == "16x64"
    assert set(on_gpu) == {"moe_matmul", "linear", "attention", "route"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--op", "rms_norm"], "firesteel tune measures moe_matmul, linear, attention, route"),
        (["--activation", "fp3"], "must be one of"),
        (["--m", "x"], "--m x"),
        (["--out", "no/such/folder/tiles.json"], "name a file in a folder that exists"),
    ],
)
def test_what_cannot_be_tuned_is_refused(run, on_gpu, flags, message, tmp_path):
    result = run("tune", "--out", str(tmp_path / "tiles.json"), *flags)
    assert result.exit_code != 0 and message in str(result.exception)
    assert not (tmp_path / "tiles.json").exists()


def test_what_is_no_file_is_not_replaced(run, on_gpu, tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    result = run("tune", "--out", str(path))
    assert result.exit_code != 0 and "name a file in a folder that exists" in str(result.exception)
    assert path.is_fifo() and not on_gpu

"""The verb calibrate, and the use of its file by generate."""

import pytest

from firesteel import UserError
from firesteel.engine.cache.kv_scales import read_scales
from firesteel.kernels.registry import NETWORK_OPS

TEXT = "the quick brown fox jumps over the lazy dog; " * 8


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return str(path)


def test_calibrate_writes_a_file_for_generate_and_shows_a_table(run, rows_of, checkpoint, text, tmp_path):
    out = tmp_path / "scales.json"
    result = run("calibrate", str(checkpoint), str(out), "--text", text, "--device", "cpu")
    assert result.exit_code == 0, result.output
    scales, rows = read_scales(out, 3), rows_of(result.stdout)
    assert [row[0] for row in rows] == ["0", "1", "2"]
    assert [row[3:] for row in rows] == [
        [f"{key:g}", f"{value:g}"] for key, value in zip(scales.keys, scales.values, strict=True)
    ]
    assert all(float(cell) > 0 for row in rows for cell in row[1:])
    assert f"over {len(TEXT)} tokens" in result.stdout and f"--kv-scales {out}" in " ".join(result.stderr.split())
    asked = ["generate", "--model", str(checkpoint), "--prompt", "abc", "--max-tokens", "2", "--device", "cpu"]
    asked += ["--temperature", "1"]
    with_scales = run(*asked, "--kv-dtype", "fp8", "--kv-scales", str(out), "--ledger")
    assert with_scales.exit_code == 0, with_scales.output
    clipped = {row[0]: row[6] for row in rows_of(with_scales.stdout)}
    ran = {op.name for op in NETWORK_OPS} - {"rms_norm_fed"}  # references read plain rows
    assert clipped == {name: "0" if name == "rope_kv_write" else "" for name in ran}


def test_fixed_settings_of_the_environment_are_ignored(run, checkpoint, text, tmp_path):
    out = tmp_path / "scales.json"
    environment = {"FIRESTEEL_KV_DTYPE": "fp8", "FIRESTEEL_KV_SCALES": "nowhere", "FIRESTEEL_DEVICE": "cpu"}
    assert run("calibrate", str(checkpoint), str(out), "--text", text, **environment).exit_code == 0


def test_mistakes_are_errors_before_the_model_is_read(run, checkpoint, text, tmp_path):
    complaints = {
        text: "exists already",
        str(tmp_path / "no" / "where"): "is not a folder",
        "/proc/zz.json": "cannot write the scales /proc/zz.json",
    }
    for out, complaint in complaints.items():
        result = run("calibrate", str(checkpoint), out, "--text", text)
        assert isinstance(result.exception, UserError) and complaint in str(result.exception)


def test_nothing_is_written_without_a_text(run, checkpoint, tmp_path):
    result = run("calibrate", str(checkpoint), str(tmp_path / "scales.json"), "--device", "cpu")
    assert isinstance(result.exception, UserError) and "--text FILE is required" in str(result.exception)
    assert not (tmp_path / "scales.json").exists()


def test_settings_reach_the_model(run, checkpoint, text, tmp_path):
    asked = ("calibrate", str(checkpoint), str(tmp_path / "scales.json"), "--text", text, "--device", "cpu")
    result = run(*asked, "--max-model-len", "1000")
    assert isinstance(result.exception, UserError) and "max_model_len = 1000" in str(result.exception)
    assert run(*asked, "--page-size", "4").exit_code == 0


@pytest.mark.parametrize(
    "flags", [["--kv-dtype", "fp8"], ["--kv-dtype", "auto"], ["--kv-scales", "a.json"], ["--model", "other"]]
)
def test_fixed_settings_are_an_error_if_given(run, checkpoint, tmp_path, flags):
    result = run("calibrate", str(checkpoint), str(tmp_path / "scales.json"), *flags)
    assert isinstance(result.exception, UserError)
    assert str(result.exception).startswith(" ".join(flags)) and str(result.exception).endswith("leave it out")
    assert not list(tmp_path.iterdir())

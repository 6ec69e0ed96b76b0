"""The verb quantize."""

import json

import pytest

import firesteel.cli.model.quantize  # noqa: F401  registers the verb
from firesteel import UserError
from firesteel.model.spec import read_spec


def test_quantize_writes_a_checkpoint_and_prints_the_error(run, checkpoint, tmp_path):
    result = run("quantize", str(checkpoint), str(tmp_path / "out"), "--layers", "qkv, lm_head")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines[:2]] == ["lm_head", "qkv"]
    assert "relative rms error 0.1" in lines[0] and "9 matrices" in lines[1]
    assert "GB became" in lines[2] and lines[3].startswith("only firesteel reads this checkpoint")
    assert read_spec(tmp_path / "out").mxfp4_layers == ("qkv", "lm_head")


def test_quantize_includes_all_layers_by_default(run, checkpoint, tmp_path):
    result = run("quantize", str(checkpoint), str(tmp_path / "out"), "--json")
    report = json.loads(result.stdout)
    assert report["mxfp4_layers"] == ["qkv", "o", "lm_head"] and report["bytes_after"] < report["bytes_before"]
    assert {layer["layer"]: layer["matrices"] for layer in report["layers"]} == {"qkv": 9, "o": 3, "lm_head": 1}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [(["--layers", "ffn"], "'ffn' is not a layer"), (["--layers", "moe"], "nothing to quantise: name some of")],
)
def test_quantize_refuses_invalid_layers(run, checkpoint, tmp_path, arguments, complaint):
    result = run("quantize", str(checkpoint), str(tmp_path / "out"), *arguments)
    assert isinstance(result.exception, UserError) and complaint in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_quantize_does_not_overwrite(run, checkpoint, tmp_path):
    result = run("quantize", str(checkpoint), str(checkpoint))
    assert isinstance(result.exception, UserError) and "not an empty folder" in str(result.exception)

"""The verb list."""

import json
import shutil

import huggingface_hub.constants
import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch, checkpoint):
    """A cache with a model that lacks its weights, and one of another kind."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    for name in ("openai--gpt-oss-20b", "meta--llama"):
        root = tmp_path / f"models--{name}"
        folder = shutil.copytree(checkpoint, root / "snapshots" / ("0" * 40))
        (root / "refs").mkdir()
        (root / "refs" / "main").write_text("0" * 40)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "models--openai--gpt-oss-20b" / "snapshots" / ("0" * 40) / "model.safetensors").unlink()
    return tmp_path


def test_list_shows_what_is_there_and_whether_it_runs(run, rows_of, cache):
    result = run("list", FIRESTEEL_DEVICE="cpu")
    assert result.exit_code == 0, result.output
    (kindling, incomplete), text = rows_of(result.stdout), " ".join(result.stdout.split())
    assert kindling[:2] == ["kindling", "built in"] and kindling[3:6] == ["yes", "MXFP4: moe", "yes"]
    assert incomplete[:2] == ["gpt-oss-20b", "main, 0000000"] and incomplete[3:6] == ["no", "MXFP4: moe", "not now"]
    assert f"cache: {cache}; not shown: other models (1);" in text
    assert "fetch or resume a model: firesteel pull NAME" in text


def test_list_as_json_has_folders_bytes_and_reasons(run, cache):
    kindling, incomplete = json.loads(run("list", "--json", FIRESTEEL_DEVICE="cpu").stdout)
    assert kindling["name"] == "kindling" and kindling["runs"] == "yes" and kindling["complete"] is True
    assert incomplete["repository"] == "openai/gpt-oss-20b" and incomplete["revisions"] == ["main"]
    assert incomplete["complete"] is False and incomplete["runs"] == "not now"
    assert incomplete["folder"].startswith(str(cache)) and incomplete["bytes"] > 0
    assert "model.safetensors" in incomplete["why"]


def test_list_honours_the_setting_of_the_device(run):
    result = run("list", FIRESTEEL_DEVICE="cuda:99")
    assert "cuda:99" in str(result.exception)

"""Models on this machine: complete or not, and whether its memory is enough."""

import dataclasses
import json
import shutil

import huggingface_hub.constants
import pytest

from firesteel.cli.model import local_models
from firesteel.cli.model.local_models import Fit, check_checkpoint, judge, list_models
from firesteel.device import GIB, find_device
from firesteel.errors import UserError
from firesteel.model.spec import PRESETS

CPU = find_device("cpu")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def put(cache, repository, source, commit=COMMIT, revision="main"):
    root = cache / f"models--{repository.replace('/', '--')}"
    (root / "refs").mkdir(parents=True, exist_ok=True)
    (root / "refs" / revision).write_text(commit)
    return shutil.copytree(source, root / "snapshots" / commit)


def model_of(name):
    return next(model for model in list_models(CPU).models if model.name == name)


def test_built_in_model_comes_first_and_runs(cache):
    kindling, *others = list_models(CPU).models
    assert (kindling.name, kindling.revisions, kindling.is_complete) == ("kindling", ("built in",), True)
    assert kindling.fit is Fit.YES and kindling.quantisation == "MXFP4: moe" and not others


def test_complete_model_of_the_cache_runs(cache, checkpoint):
    folder = put(cache, "openai/gpt-oss-20b", checkpoint)
    model = model_of("gpt-oss-20b")
    assert model.is_complete and model.fit is Fit.YES and model.revisions == ("main",) and model.commit == COMMIT
    assert model.num_bytes == sum(path.stat().st_size for path in folder.iterdir())


@pytest.mark.parametrize("missing", ["model.safetensors", "tokenizer.json"])
def test_missing_file_makes_a_model_incomplete(cache, checkpoint, missing):
    (put(cache, "openai/gpt-oss-20b", checkpoint) / missing).unlink()
    model = model_of("gpt-oss-20b")
    assert not model.is_complete and model.fit is Fit.NOT_NOW and missing in model.why


def test_without_config_nothing_is_known(cache, checkpoint):
    (put(cache, "openai/gpt-oss-20b", checkpoint) / "config.json").unlink()
    model = model_of("gpt-oss-20b")
    assert not model.is_complete and model.fit is Fit.UNKNOWN and model.quantisation == "unknown"


def test_truncated_weights_make_a_model_incomplete(cache, checkpoint):
    weights = put(cache, "openai/gpt-oss-20b", checkpoint) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert not model_of("gpt-oss-20b").is_complete and "truncated" in model_of("gpt-oss-20b").why


def test_gpt_oss_in_another_format_does_not_run(cache, checkpoint):
    config = put(cache, "unsloth/gpt-oss-20b-BF16", checkpoint) / "config.json"
    content = json.loads(config.read_text())
    del content["quantization_config"]
    config.write_text(json.dumps(content))
    model = model_of("unsloth/gpt-oss-20b-BF16")
    assert model.fit is Fit.NO and "the experts are not MXFP4" in model.why


def test_other_models_are_counted_but_not_listed(cache, checkpoint):
    config = put(cache, "meta/llama", checkpoint) / "config.json"
    config.write_text('{"model_type": "llama"}')
    (put(cache, "some/tokenizer", checkpoint) / "config.json").unlink()
    held = list_models(CPU)
    assert held.num_others == 2 and [model.name for model in held.models] == ["kindling"]


def test_every_snapshot_of_a_repository_is_a_row(cache, checkpoint):
    put(cache, "openai/gpt-oss-20b", checkpoint, revision="v1")
    put(cache, "openai/gpt-oss-20b", checkpoint, commit="f" * 40)
    rows = [(model.revisions, model.commit) for model in list_models(CPU).models[1:]]
    assert rows == [(("v1",), COMMIT), (("main",), "f" * 40)]


@pytest.mark.parametrize(
    ("total_gib", "free_gib", "fit"),
    [(140, 140, Fit.YES), (140, 30, Fit.NOT_NOW), (24, 24, Fit.NO)],
)
def test_weights_are_compared_with_the_memory_of_the_device(monkeypatch, total_gib, free_gib, fit):
    device = dataclasses.replace(CPU, name="a GPU", capability=(9, 0), memory_bytes=total_gib * GIB)
    monkeypatch.setattr(local_models, "available_bytes", lambda device: free_gib * GIB)
    judged, why = judge(PRESETS["gpt-oss-120b"], device)
    assert judged is fit and why.startswith(f"the weights take 60.8 GiB, a GPU has {total_gib}.0")


def test_reserve_must_fit_beside_the_weights(monkeypatch):
    device = dataclasses.replace(CPU, name="a GPU", capability=(9, 0), memory_bytes=61 * GIB)
    monkeypatch.setattr(local_models, "available_bytes", lambda device: 61 * GIB)
    assert judge(PRESETS["gpt-oss-120b"], device)[0] is Fit.NO
    monkeypatch.setenv("FIRESTEEL_MEMORY_RESERVE_GIB", "0")
    assert judge(PRESETS["gpt-oss-120b"], device)[0] is Fit.YES


def test_large_model_on_a_cpu_is_said_to_be_slow(monkeypatch):
    device = dataclasses.replace(CPU, memory_bytes=140 * GIB)
    monkeypatch.setattr(local_models, "available_bytes", lambda device: 140 * GIB)
    assert judge(PRESETS["gpt-oss-20b"], device)[1].endswith("; slow without a GPU")


def test_checkpoint_with_a_tensor_of_a_wrong_shape_is_refused(checkpoint, tmp_path):
    folder = shutil.copytree(checkpoint, tmp_path / "changed")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": config["vocab_size"] + 1}))
    with pytest.raises(UserError, match="embed_tokens"):
        check_checkpoint(folder)

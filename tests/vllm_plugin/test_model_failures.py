"""Failures inside vLLM: it ends with its own error, our cause is in its log, and nothing hangs."""

import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from firesteel.hub import BUILT_IN
from firesteel.model.spec import PRESETS, write_spec
from tests.vllm_plugin.peers import ROOT, each_version, run_python
from tests.vllm_plugin.ray_nodes import two_nodes

pytestmark = pytest.mark.peer
OPTIONS = {"max_model_len": 256, "max_num_seqs": 2}


def fail(version, variables=None, **options):
    """Returns the log of a vLLM that does not start with these options."""
    task = {"options": OPTIONS | options, "rounds": [], "max_tokens": 1, "has_logprobs": False, "reloads": False}
    code, log = run_python(version, [ROOT / "tests/vllm_plugin/generate.py"], task=task, **(variables or {}))
    assert code != 0, log[-4000:]
    assert "FiresteelGptOss" in log or "firesteel" in log
    return log


@each_version
def test_killed_worker_ends_the_next_request_with_an_error(version):
    code, log = run_python(version, [ROOT / "tests/vllm_plugin/kill_worker.py"])
    answers = [line for line in log.splitlines() if line.startswith('{"error"')]
    assert answers, log[-4000:]
    assert "EngineDeadError" in json.loads(answers[-1])["error"] and code == 0


@each_version
def test_checkpoint_without_a_tensor_is_refused_by_its_name(version, tmp_path):
    missing = "model.layers.3.mlp.router.weight"
    folder = shutil.copytree(BUILT_IN, tmp_path / "broken")
    tensors = load_file(folder / "model.safetensors")
    tensors.pop(missing)
    (folder / "model.safetensors").unlink()
    save_file(tensors, folder / "model.safetensors")
    assert missing in fail(version, model=str(folder))


@each_version
def test_weights_that_do_not_fit_are_refused_with_their_size(version, tmp_path):
    spec = replace(PRESETS["gpt-oss-120b"], num_layers=1008, windows=PRESETS["gpt-oss-120b"].windows * 28)
    (tmp_path / "config.json").write_text(json.dumps(write_spec(spec)))
    log = fail(version, model=str(tmp_path), load_format="dummy")
    assert "the weights take" in log and "GiB available" in log


@each_version
def test_cache_that_does_not_hold_one_request_is_refused_by_vllm(version, tmp_path):
    folder = shutil.copytree(BUILT_IN, tmp_path / "long")
    content = json.loads((folder / "config.json").read_text())
    content["rope_scaling"]["factor"] = 128.0
    content["max_position_embeddings"] = 524_288
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(content))
    (folder / "tokenizer_config.json").unlink()  # it states a limit too
    log = fail(version, model=str(folder), max_model_len=400_000)
    assert "KV cache" in log and "max_model_len" in log


@each_version
def test_node_without_the_plugin_is_refused(version):
    """It would join as a rank of vLLM's own gpt-oss."""
    with (
        tempfile.TemporaryDirectory(prefix="ray") as folder,
        two_nodes(version, Path(folder), FIRESTEEL_VLLM="off") as variables,
    ):
        log = fail(version, variables, tensor_parallel_size=2, distributed_executor_backend="ray")
    assert "FIRESTEEL_VLLM switches the plugin off in this worker" in log

"""A checkpoint folder becomes an engine that does what LLM's does."""

import asyncio
import logging
import os

import pytest
import torch

from firesteel.config import ModelConfig, resolve
from firesteel.device import GIB, DeviceSpec, find_device
from firesteel.engine.client import EngineClient
from firesteel.engine.kv_scales import ScaleError, write_scales
from firesteel.engine.load import find_reserve, load_engine, synthetic_engine
from firesteel.errors import UserError
from firesteel.kernels import cuda_cache
from firesteel.types import KvScales, Request, SamplingParams

CPU = {"device": "cpu", "memory_reserve_gib": 0.0}


def test_loaded_engine_follows_the_settings_and_gives_the_tokens_of_llm(checkpoint, llm):
    config = resolve({**CPU, "page_size": 8, "max_model_len": 100, "kernels": "linear=reference"}).config
    seen = []
    loaded = load_engine(checkpoint, config, progress=lambda done, total: seen.append((done, total)))
    assert loaded.max_context == 100 and loaded.engine.config.page_size == 8
    assert seen[-1][0] == seen[-1][1] == loaded.report.num_bytes > 0
    loaded.engine.submit(Request(request_id="a", token_ids=[5, 6], params=SamplingParams(max_tokens=9)))
    made = []
    while loaded.engine.has_work:
        made += [token for output in loaded.engine.step() for token in output.token_ids]
    assert made == llm.generate([[5, 6]], SamplingParams(max_tokens=9))[0].token_ids
    assert loaded.kernels.ledger.entries


def test_share_of_a_gpus_memory_is_what_must_stay_free():
    gpu = DeviceSpec(
        torch_device=torch.device("cpu"), name="GPU", capability=(9, 0), num_sms=1, l2_bytes=1,
        memory_bytes=100 * GIB, is_unified=False,
    )  # fmt: skip
    assert find_reserve(gpu, ModelConfig(gpu_memory_utilization=0.9)) == pytest.approx(10)
    assert find_reserve(gpu, ModelConfig(memory_reserve_gib=2.5)) == 2.5
    on_cpu = ModelConfig(gpu_memory_utilization=0.9, memory_reserve_gib=2.5)
    assert find_reserve(find_device("cpu"), on_cpu) == 2.5


def test_engine_that_builds_no_cuda_kernel_needs_no_home_folder(checkpoint, monkeypatch, caplog):
    for name in ("_given", "_current"):
        monkeypatch.setattr(cuda_cache, name, None)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with caplog.at_level(logging.WARNING):
        assert load_engine(checkpoint, resolve(CPU).config).engine.totals.pages > 0
    assert not caplog.records


def test_context_beyond_the_checkpoint_is_refused_before_anything_is_read(checkpoint):
    with pytest.raises(UserError, match="max_model_len = 300: the checkpoint reaches 256"):
        load_engine(checkpoint, resolve({**CPU, "max_model_len": 300}).config, progress=pytest.fail)


def test_scales_for_another_model_are_refused_before_anything_is_read(checkpoint, tmp_path):
    write_scales(tmp_path / "scales.json", KvScales(keys=(1.0,) * 4, values=(1.0,) * 4))
    config = resolve({**CPU, "kv_dtype": "fp8", "kv_scales": str(tmp_path / "scales.json")}).config
    with pytest.raises(ScaleError, match="is of a model of 4 layers, this one has 3"):
        load_engine(checkpoint, config, progress=pytest.fail)


def test_scales_reach_random_weights_too(llm, tmp_path):
    scales = KvScales(keys=(0.5, 1.0, 2.0), values=(4.0, 1.0, 0.25))
    write_scales(tmp_path / "scales.json", scales)
    config = resolve({**CPU, "kv_dtype": "fp8", "kv_scales": str(tmp_path / "scales.json")}).config
    assert synthetic_engine(llm.spec, config, seed=1).model.kv_scales == scales


def test_scales_reach_an_engine_in_a_process_of_its_own(checkpoint, tmp_path):
    """Scales so small that they clip every value but zeros."""
    write_scales(tmp_path / "scales.json", KvScales(keys=(1.0,) * 3, values=(1e-30,) * 3))
    knobs = {**CPU, "kv_dtype": "fp8", "kv_scales": str(tmp_path / "scales.json"), "crash_dir": str(tmp_path)}

    async def count():
        client = await EngineClient.start(checkpoint, resolve(knobs).config)
        try:
            request = Request(request_id="a", token_ids=[5, 6], params=SamplingParams(max_tokens=1))
            async for _ in client.generate(request):
                pass
            return (await client.statistics()).saturated_values
        finally:
            await client.close()

    assert asyncio.run(count()) == 3 * 2 * 2 * 32  # layers, tokens, kv heads, values of a head

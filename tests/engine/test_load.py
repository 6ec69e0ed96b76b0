"""Engines built from a checkpoint folder: settings, errors and equality with LLM."""

import asyncio
import logging
import os
from dataclasses import replace

import pytest
import torch

from firesteel.config import ModelConfig, resolve
from firesteel.device import GIB, DeviceSpec, find_device
from firesteel.device.catalogue import CATALOGUE
from firesteel.engine import load
from firesteel.engine.cache.kv_scales import ScaleError, write_scales
from firesteel.engine.load import choose_fused, find_reserve, load_engine, synthetic_engine
from firesteel.engine.process.client import EngineClient
from firesteel.errors import UserError
from firesteel.kernels.cuda import cache as cuda_cache
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.tiles.tuned import TilesError, Tuned, change_options, use_options
from firesteel.model import decode_ops
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


def test_loading_and_every_step_use_the_device(checkpoint, monkeypatch):
    """The current GPU is per thread, so every thread has to set it."""
    used = []
    monkeypatch.setattr(DeviceSpec, "use", lambda device: used.append(device.name))
    engine = load_engine(checkpoint, resolve(CPU).config).engine
    assert used == ["CPU"]
    engine.step()
    assert used == ["CPU", "CPU"]


def test_share_of_a_gpus_memory_is_what_must_stay_free():
    gpu = DeviceSpec(
        torch_device=torch.device("cpu"),
        name="GPU",
        capability=(9, 0),
        num_sms=1,
        l2_bytes=1,
        memory_bytes=100 * GIB,
        is_unified=False,
    )
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
    with pytest.raises(UserError, match="max_model_len = 300: the checkpoint supports at most 256 tokens"):
        load_engine(checkpoint, resolve({**CPU, "max_model_len": 300}).config, progress=pytest.fail)


def test_scales_for_another_model_are_refused_before_anything_is_read(checkpoint, tmp_path):
    write_scales(tmp_path / "scales.json", KvScales(keys=(1.0,) * 4, values=(1.0,) * 4))
    config = resolve({**CPU, "kv_dtype": "fp8", "kv_scales": str(tmp_path / "scales.json")}).config
    with pytest.raises(ScaleError, match="is for a model of 4 layers, this model has 3"):
        load_engine(checkpoint, config, progress=pytest.fail)


def test_scales_reach_random_weights_too(llm, tmp_path):
    scales = KvScales(keys=(0.5, 1.0, 2.0), values=(4.0, 1.0, 0.25))
    write_scales(tmp_path / "scales.json", scales)
    config = resolve({**CPU, "kv_dtype": "fp8", "kv_scales": str(tmp_path / "scales.json")}).config
    assert synthetic_engine(llm.spec, config, seed=1).model.kv_scales == scales


def test_scales_reach_an_engine_in_a_process_of_its_own(checkpoint, tmp_path):
    """The scales are so small that every value except zero is clipped."""
    write_scales(tmp_path / "scales.json", KvScales(keys=(1.0,) * 3, values=(1e-30,) * 3))
    settings = {**CPU, "kv_dtype": "fp8", "kv_scales": str(tmp_path / "scales.json"), "crash_dir": str(tmp_path)}

    async def count():
        client = await EngineClient.start(checkpoint, resolve(settings).config)
        try:
            request = Request(request_id="a", token_ids=[5, 6], params=SamplingParams(max_tokens=1))
            async for _ in client.generate(request):
                pass
            return (await client.statistics()).saturated_values
        finally:
            await client.close()

    assert asyncio.run(count()) == 3 * 2 * 2 * 32  # layers, tokens, kv heads, values of a head


def test_tiles_of_a_gpu_are_refused_on_a_cpu_before_anything_is_read(checkpoint):
    with pytest.raises(TilesError, match=r"tiles_file = 'tiles.json' is for a GPU, this is CPU"):
        load_engine(checkpoint, resolve({**CPU, "tiles_file": "tiles.json"}).config, progress=pytest.fail)


def test_tiles_of_the_file_reach_the_matmuls_and_its_options_the_launches(checkpoint, monkeypatch):
    tuned = Tuned({"moe_matmul bf16 6x96x64": {8: "16x64"}}, {"fc1 DEPTH=128": {"DEPTH": 64}})
    monkeypatch.setattr(load, "load_tuned", lambda path, device: tuned if path == "tiles.json" else Tuned())
    try:
        model = load_engine(checkpoint, resolve({**CPU, "tiles_file": "tiles.json"}).config).model
        assert change_options("fc1", {"DEPTH": 128}) == {"DEPTH": 64}
    finally:
        use_options({})
    assert [model.find_tile("moe_matmul", (6, 96, 64), tokens) for tokens in (4, 5, 8, 9)] == [
        "auto",
        "16x64",
        "16x64",
        "auto",
    ]
    pinned = load_engine(checkpoint, resolve({**CPU, "tiles_file": "tiles.json", "tile": "32x64"}).config).model
    assert pinned.find_tile("moe_matmul", (6, 96, 64), 8) == "32x64"
    load_engine(checkpoint, resolve(CPU).config)
    assert change_options("fc1", {"DEPTH": 128}) == {"DEPTH": 128}, "without a file, as shipped"


def test_steps_are_made_while_loading_if_configured(checkpoint):
    told, settings = [], {"prepare": True, "max_num_seqs": 2}
    loaded = load_engine(
        checkpoint, resolve({**CPU, **settings}).config, preparing=lambda *counts: told.append(counts)
    )
    assert told == [(1, 2), (2, 2)] and loaded.engine.statistics().graphs == 2
    assert load_engine(checkpoint, resolve(CPU).config).engine.statistics().graphs == 0


@pytest.mark.parametrize(("layers", "weight"), [("", "bf16-weight"), ("qkv", "mxfp4-weight")])
def test_verdict_required_of_a_decode_op_is_checked_for_the_models_weights(checkpoint, monkeypatch, layers, weight):
    asked = []
    monkeypatch.setattr(decode_ops, "check_here", lambda op, device, required, *others: asked.append(others))
    settings = {"require": "decode_qkv=reference@none", "mxfp4_layers": layers, "activation": "mxfp8"}
    load_engine(checkpoint, resolve({**CPU, **settings}).config)
    assert asked == [("mxfp8", weight)]


@pytest.mark.parametrize(
    ("settings", "is_fused"),
    [
        ({}, True),
        ({"kernels": "linear=triton"}, False),
        ({"require": "moe=triton"}, False),
        ({"kernels": "linear=triton,decode_o=cuda"}, True),
        ({"require": "moe=cuda:stream,decode_experts=cuda"}, True),
        ({"kernels": "draw=triton"}, True),
    ],
    ids=str,
)
def test_named_op_of_the_network_runs_in_decoding_steps_too(caplog, settings, is_fused):
    """Otherwise the decode ops replace it on a GPU."""
    gpu = replace(find_device("cpu"), capability=(9, 0), name="GPU")
    fused = choose_fused(gpu, resolve(settings).config, Ledger(), ())
    assert (fused is not None) == is_fused and ("op by op" in caplog.text) == (not is_fused)


@pytest.mark.parametrize(
    ("required", "complaint"),
    [
        ("moe=reference", "moe_matmul is required, but decoding steps would run decode_experts or decode_fc1"),
        ("moe=reference,decode_fc1=reference", "would run decode_experts or decode_fc2: require that too"),
        ("linear=reference,decode_qkv=reference", "linear is required, but decoding steps would run decode_o:"),
    ],
)
def test_required_op_beside_named_decode_ops_needs_its_decode_op_named(checkpoint, required, complaint):
    settings = {"require": required, "kernels": "decode_router=reference"}
    with pytest.raises(UserError, match=complaint):
        load_engine(checkpoint, resolve({**CPU, **settings}).config, progress=pytest.fail)


@pytest.mark.parametrize("is_asked", [False, True])
def test_sampling_is_prepared_while_loading_if_steps_are(checkpoint, is_asked):
    loaded = load_engine(checkpoint, resolve({**CPU, "prepare": is_asked}).config)
    assert ("draw" in {ran.op for ran in loaded.kernels.ledger.entries}) == is_asked


def test_prompts_are_rounded_on_their_own(checkpoint, monkeypatch):
    """Steps of prompts round to MXFP8, decoding steps do not; the CPU emulates a GPU that does it natively."""
    monkeypatch.setattr("firesteel.engine.load.check_prompt_activation", lambda device, config: None)
    loaded = load_engine(checkpoint, resolve({**CPU, "prefill_activation": "mxfp8"}).config)
    assert loaded.formats()["activation"] == "bf16" and loaded.formats()["prefill_activation"] == "mxfp8"
    rounded = load_engine(checkpoint, resolve({**CPU, "activation": "mxfp8"}).config)

    def first_step(engine):
        engine.submit(Request(request_id="a", token_ids=[5, 6, 7], params=SamplingParams(max_tokens=3, logprobs=1)))
        (output,) = engine.step()
        return output.logprobs

    assert first_step(loaded.engine) == first_step(rounded.engine)
    ledger = loaded.kernels.ledger
    assert {ran.activation for ran in ledger.entries if ran.op == "moe_matmul"} == {"mxfp8"}
    loaded.engine.step()
    assert {ran.activation for ran in ledger.entries if ran.op == "moe_matmul"} == {"mxfp8", "bf16"}


@pytest.mark.parametrize("unfit", [0, 1])
def test_experts_of_prompts_are_rounded_to_fp8_and_those_that_do_not_fit_are_counted(
    checkpoint, monkeypatch, unfit
):
    """Only the experts of steps with prompts: dense layers in MXFP4 and decoding steps are not rounded."""

    def spoil(weights, kernels):
        experts = weights.layers[1].experts
        experts.down_codes[2, 5, :32] = 0x11
        experts.down_scales[2, 5, 0] = experts.down_scales[2, 5, 1] - (15 if unfit else 14)

    monkeypatch.setattr("firesteel.engine.load.order_experts", spoil)
    settings = {**CPU, "prefill_activation": "fp8", "mxfp4_layers": "qkv,o"}
    loaded = load_engine(checkpoint, resolve(settings).config)
    count = sum(len(layer.experts.down_bias) for layer in loaded.model.weights.layers)
    said = {"activation": "bf16", "prefill_activation": "fp8", "experts_in_bf16": f"{unfit} of {count}"}
    assert loaded.formats().items() >= said.items()
    counted = loaded.engine.statistics()
    assert (counted.experts_in_fp8, counted.experts_in_bf16) == (count - unfit, unfit)
    loaded.engine.submit(Request(request_id="a", token_ids=[5, 6, 7], params=SamplingParams(max_tokens=3)))
    loaded.engine.step()

    def activations(op):
        return {ran.activation for ran in loaded.kernels.ledger.entries if ran.op == op}

    assert activations("moe_matmul") == {"fp8"} and activations("linear") == {"bf16"}
    loaded.engine.step()
    assert activations("moe_matmul") == {"fp8", "bf16"}


@pytest.mark.parametrize(
    ("asked", "variable", "num_bytes", "threads"),
    [(3, "", 1, 3), (3, "5", 1, 3), (0, "5", 1, None), (0, "", 1, 1), (0, "", 1 << 40, 6)],
)
def test_threads_follow_the_setting_then_the_variable_then_the_weights(
    monkeypatch, asked, variable, num_bytes, threads
):
    chosen = []
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    monkeypatch.setattr(load, "count_cores", lambda: 6)
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    load.use_threads(find_device("cpu"), asked, num_bytes)
    load.use_threads(CATALOGUE["h200"], 2, num_bytes)
    assert chosen == ([] if threads is None else [threads])

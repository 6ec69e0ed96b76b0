"""LLM on a tiny random checkpoint: equal results however it runs, its logits, and the effect of each setting."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

from firesteel import LLM, SamplingParams, UserError
from firesteel.config import RemovedSettingWarning
from firesteel.device.host_memory import find_host_memory
from firesteel.engine import load
from firesteel.engine.cache.kv_scales import write_scales
from firesteel.engine.sample.sampler import sample
from firesteel.kernels.ledger import Ran
from firesteel.kernels.registry import NETWORK_OPS
from firesteel.llm import read_stop_ids
from firesteel.model import reader
from firesteel.model.quantize import quantize_checkpoint
from firesteel.types import KvScales

PROMPTS = ["a", "The quick brown fox", "0123456789" * 4, "héllo wörld, 日本", "xyz" * 7]
GREEDY = SamplingParams(max_tokens=12, ignore_eos=True)
ENDOFTEXT, RETURN, CALL = 257, 258, 264


def tokens(completions):
    return [completion.token_ids for completion in completions]


@pytest.fixture(scope="module")
def expected(llm):
    """Tokens of each prompt alone, greedy, with default settings."""
    return [llm.generate([prompt], GREEDY)[0].token_ids for prompt in PROMPTS]


@pytest.fixture
def steps(monkeypatch):
    """Records (tokens, requests, page size) of every forward of the LLM it is given."""

    def record(llm):
        seen, forward = [], llm.model.forward

        def recorded(batch, cache, *rest, **named):
            seen.append((batch.token_ids.numel(), batch.kv_lens.numel(), cache.keys[0].shape[2]))
            return forward(batch, cache, *rest, **named)

        monkeypatch.setattr(llm.model, "forward", recorded)
        return seen

    return record


def copy_of(checkpoint, directory, **files):
    """Copies a checkpoint folder with some JSON files replaced, or removed if None."""
    shutil.copytree(checkpoint, directory, dirs_exist_ok=True)
    for stem, content in files.items():
        path = directory / f"{stem}.json"
        if content is None:
            path.unlink()
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
    return directory


def test_text_and_its_token_ids_give_equal_completions(llm, expected):
    for prompt, ids in zip(PROMPTS, expected, strict=True):
        assert tokens(llm.generate([llm.tokenizer.encode(prompt)], GREEDY)) == [ids]


def test_completion_holds_its_tokens_text_and_reason(llm, expected):
    completion = llm.generate([PROMPTS[1]], GREEDY)[0]
    assert completion.text == llm.tokenizer.decode(completion.token_ids)
    assert completion.finish_reason == "length" and len(completion.token_ids) == 12


def test_different_prompts_give_different_tokens(expected):
    assert len({tuple(ids) for ids in expected}) == len(expected)
    assert all(len(set(ids)) > 3 for ids in expected)


def test_greedy_tokens_do_not_depend_on_the_seed(llm, expected):
    params = SamplingParams(max_tokens=12, ignore_eos=True, seed=99)
    assert tokens(llm.generate(PROMPTS, params)) == expected


def test_equal_seeds_give_equal_tokens_and_another_seed_does_not(llm):
    def drawn(seed):
        params = SamplingParams(max_tokens=12, temperature=1.0, seed=seed, ignore_eos=True)
        return tokens(llm.generate(PROMPTS[:2], params))

    assert drawn(1) == drawn(1)
    assert drawn(1)[0] != drawn(2)[0] and drawn(1)[1] != drawn(2)[1]


def test_drawn_tokens_do_not_depend_on_the_batch(llm):
    params = [SamplingParams(max_tokens=8, temperature=1.0, seed=i, ignore_eos=True) for i in range(len(PROMPTS))]
    alone = [tokens(llm.generate([prompt], wanted))[0] for prompt, wanted in zip(PROMPTS, params, strict=True)]
    assert tokens(llm.generate(PROMPTS, params)) == alone


def test_drawn_tokens_are_those_of_the_sampler_at_their_positions(llm):
    params = SamplingParams(max_tokens=8, temperature=1.0, seed=3, ignore_eos=True)
    ids = llm.tokenizer.encode(PROMPTS[1])
    new = llm.generate([ids], params)[0].token_ids
    rows = llm.logits([*ids, *new])[len(ids) - 1 : -1]
    assert new == sample(rows, [params] * 8, range(len(ids), len(ids) + 8))


@pytest.mark.parametrize("count", [1, 2, 7])
def test_max_tokens_limits_the_length(llm, expected, count):
    params = SamplingParams(max_tokens=count, ignore_eos=True)
    assert tokens(llm.generate(PROMPTS, params)) == [ids[:count] for ids in expected]


def test_each_prompt_may_have_its_own_params(llm, expected):
    params = [SamplingParams(max_tokens=count, ignore_eos=True) for count in (5, 1, 9, 12, 3)]
    actual = tokens(llm.generate(PROMPTS, params))
    assert actual == [ids[: wanted.max_tokens] for ids, wanted in zip(expected, params, strict=True)]


def test_no_prompts_give_no_completions(llm):
    assert llm.generate([]) == []


def test_stop_ids_come_from_the_generation_config(llm):
    assert llm.stop_ids == {ENDOFTEXT, RETURN, CALL}


@pytest.mark.parametrize(
    ("generation_config", "config_ids", "stops"),
    [
        ({"eos_token_id": 5}, 9, {5}),
        ({"eos_token_id": [5, 6]}, 9, {5, 6}),
        ({}, 9, {9}),
        (None, [9, 8], {9, 8}),
        ({"eos_token_id": None}, None, set()),
    ],
)
def test_stop_ids_fall_back_to_the_config(checkpoint, tmp_path, generation_config, config_ids, stops):
    config = json.loads((checkpoint / "config.json").read_text())
    if config_ids is not None:
        config["eos_token_id"] = config_ids
    assert read_stop_ids(copy_of(checkpoint, tmp_path, generation_config=generation_config, config=config)) == stops


@pytest.mark.parametrize("content", ["{", {"eos_token_id": "<|return|>"}, {"eos_token_id": [1, "2"]}])
def test_broken_generation_config_is_an_error_that_names_it(open_llm, checkpoint, tmp_path, content):
    with pytest.raises(UserError, match=r"generation_config\.json"):
        open_llm(copy_of(checkpoint, tmp_path, generation_config=content))


@pytest.mark.parametrize("content", [None, "{"], ids=["missing", "broken"])
def test_missing_or_broken_tokenizer_is_a_user_error_that_names_it(open_llm, checkpoint, tmp_path, content):
    """It was once a ValueError, which the command line shows with a traceback."""
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        open_llm(copy_of(checkpoint, tmp_path, tokenizer=content))


def test_progress_counts_up_to_all_prompts(llm):
    params = [SamplingParams(max_tokens=count, ignore_eos=True) for count in (5, 1, 5, 2, 3)]
    seen = []
    llm.generate(PROMPTS, params, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 5), (2, 5), (3, 5), (5, 5)]


def test_progress_bar_ends_full_with_the_rate_and_a_pipe_gets_none(llm, capfd):
    llm.generate(PROMPTS, GREEDY, progress=True)
    assert "5/5" in (text := capfd.readouterr().err) and "tok/s" in text
    llm.generate(PROMPTS, GREEDY)
    assert capfd.readouterr().err == ""


def test_prefix_caching_shows_in_the_completion_and_can_be_switched_off(open_llm):
    for on, cached in ((True, 32), (False, 0)):
        llm = open_llm(page_size=16, prefix_caching=on)
        first, second = (llm.generate([PROMPTS[2]], GREEDY)[0] for _ in range(2))
        assert (first.num_cached, second.num_cached) == (0, cached)
        assert first.token_ids == second.token_ids


def test_kv_dtype_is_the_type_of_pages(open_llm):
    for name, dtype in (("auto", torch.float32), ("bf16", torch.bfloat16), ("fp8", torch.float8_e4m3fn)):
        assert {keys.dtype for keys in open_llm(kv_dtype=name).engine.runner.cache.keys} == {dtype}


def test_kv_scales_come_from_the_file_and_are_one_without_it(open_llm, tmp_path):
    scales = KvScales(keys=(0.25, 1.0, 0.003), values=(2.0, 0.125, 0.3))
    write_scales(tmp_path / "scales.json", scales)
    scaled = open_llm(kv_dtype="fp8", kv_scales=str(tmp_path / "scales.json"))
    plain, exact = open_llm(kv_dtype="fp8"), open_llm()
    assert scaled.model.kv_scales == scales
    assert plain.model.kv_scales == KvScales(keys=(1.0,) * 3, values=(1.0,) * 3)
    tokens = list(range(97, 160))
    errors = [float((model.logits(tokens) - exact.logits(tokens)).norm()) for model in (scaled, plain)]
    assert 0 < errors[0] < 3 * errors[1] and errors[0] != errors[1]


def test_kv_scales_of_another_model_are_refused(open_llm, tmp_path):
    write_scales(tmp_path / "scales.json", KvScales(keys=(1.0,), values=(1.0,)))
    with pytest.raises(UserError, match="is for a model of 1 layers, this model has 3"):
        open_llm(kv_dtype="fp8", kv_scales=str(tmp_path / "scales.json"))
    with pytest.raises(UserError, match="add --kv-dtype fp8"):
        open_llm(kv_scales=str(tmp_path / "scales.json"))


def test_ledger_counts_what_fp8_clips(open_llm):
    llm = open_llm(kv_dtype="fp8")
    llm.model.weights.layers[1].qkv_bias[-2:] = torch.tensor([600.0, 440.0]).bfloat16()  # values come last
    llm.logits(list(range(97, 107)))
    (entry,) = (entry for ran, entry in llm.ledger().entries.items() if ran.op == "rope_kv_write")
    assert entry.clipped == llm.engine.statistics().saturated_values == 10


def test_logprobs_of_tokens_and_prompt_are_in_the_completion(llm, expected):
    params = replace(GREEDY, logprobs=1, prompt_logprobs=0)
    completion = llm.generate([PROMPTS[1]], params)[0]
    ids = llm.tokenizer.encode(PROMPTS[1])
    rows = llm.logits([*ids, *expected[1]]).log_softmax(-1)
    chosen = rows[:-1].gather(1, torch.tensor([*ids[1:], *expected[1]])[:, None])[:, 0].tolist()
    logprobs = [*completion.prompt_logprobs, *completion.logprobs]
    assert [entry.logprob for entry in logprobs] == pytest.approx(chosen, abs=1e-4)
    assert [entry.token_id for entry in logprobs] == [*ids[1:], *expected[1]]


def test_loading_reports_its_progress_and_speed(checkpoint):
    seen = []
    llm = LLM(
        checkpoint, device="cpu", memory_reserve_gib=0.0, progress=lambda done, total: seen.append((done, total))
    )
    assert seen[-1] == (llm.load_report.num_bytes,) * 2
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert llm.load_report.gb_s > 0


def test_batch_of_different_lengths_equals_each_alone(llm, expected):
    assert tokens(llm.generate(PROMPTS, GREEDY)) == expected


@pytest.mark.parametrize("budget", [1, 7, 64])
def test_chunked_prompts_equal_whole_prompts(open_llm, expected, steps, budget):
    llm = open_llm(max_num_batched_tokens=budget, prefix_caching=False)
    seen = steps(llm)
    assert tokens(llm.generate(PROMPTS, GREEDY)) == expected
    assert all(count <= budget for count, requests, _ in seen if count > requests)
    seen.clear()
    assert tokens(llm.generate(PROMPTS[2:3], GREEDY)) == expected[2:3]
    prefill_steps = -(-40 // budget)
    assert sum(count for count, _, _ in seen[:prefill_steps]) == 40 and len(seen) == prefill_steps + 11
    assert max(count for count, _, _ in seen) == min(budget, 40)


def test_chunked_logits_equal_whole_ones(open_llm, llm, steps):
    ids = llm.tokenizer.encode(PROMPTS[2])
    chunked = open_llm(max_num_batched_tokens=7)
    seen = steps(chunked)
    torch.testing.assert_close(chunked.logits(ids), llm.logits(ids), rtol=1e-4, atol=1e-4)
    assert [count for count, _, _ in seen] == [7, 7, 7, 7, 7, 5]


@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_page_size_does_not_change_the_tokens(open_llm, expected, steps, page_size):
    llm = open_llm(page_size=page_size)
    seen = steps(llm)
    assert tokens(llm.generate(PROMPTS, GREEDY)) == expected
    assert {size for _, _, size in seen} == {page_size}


@pytest.mark.parametrize(("max_num_seqs", "widest"), [(1, 1), (2, 2), (64, 5)])
def test_prompts_beyond_max_num_seqs_wait(open_llm, expected, steps, max_num_seqs, widest):
    llm = open_llm(max_num_seqs=max_num_seqs)
    seen = steps(llm)
    assert tokens(llm.generate(PROMPTS, GREEDY)) == expected
    assert max(requests for _, requests, _ in seen) == widest


def test_logits_are_finite_float32_one_row_per_token(llm):
    logits = llm.logits([1, 2, 3, 4, 5])
    assert logits.shape == (5, 272) and logits.dtype == torch.float32 and logits.device.type == "cpu"
    assert logits.isfinite().all()
    assert not logits.requires_grad


def test_logits_of_a_prefix_do_not_depend_on_later_tokens(llm):
    ids = llm.tokenizer.encode(PROMPTS[2])
    torch.testing.assert_close(llm.logits(ids)[:11], llm.logits(ids[:11]), rtol=1e-4, atol=1e-4)


def test_greedy_tokens_are_the_largest_logits(llm, expected):
    for prompt, new in zip(PROMPTS, expected, strict=True):
        ids = llm.tokenizer.encode(prompt)
        rows = llm.logits([*ids, *new])[len(ids) - 1 : -1]
        assert rows.argmax(-1).tolist() == new


def test_sinks_off_changes_the_logits(open_llm, llm):
    on, off = (open_llm(sinks=sinks).logits([1, 2, 3]) for sinks in (True, False))
    assert torch.equal(on, llm.logits([1, 2, 3]))
    assert (on - off).norm() / on.norm() > 1e-2


@pytest.mark.parametrize("workers", [1, 4])
def test_any_number_of_loading_threads_reads_the_same_weights(open_llm, llm, workers, monkeypatch):
    asked, pool = [], reader.ThreadPoolExecutor
    monkeypatch.setattr(reader, "ThreadPoolExecutor", lambda count: asked.append(count) or pool(count))
    monkeypatch.setattr(load, "LOAD_WORKERS", workers)
    assert torch.equal(open_llm().logits([5, 6, 7]), llm.logits([5, 6, 7]))
    assert asked == [workers]


def test_a_removed_setting_is_accepted_with_a_warning(open_llm, llm):
    with pytest.warns(RemovedSettingWarning, match="setting load_workers is ignored"):
        assert open_llm(load_workers=1).settings.config == llm.settings.config


def test_loading_that_would_leave_too_little_memory_is_refused(open_llm):
    too_much = find_host_memory().total_bytes / (1 << 30)
    with pytest.raises(UserError, match=r"must stay free.*lower --memory-reserve-gib"):
        open_llm(memory_reserve_gib=too_much)
    assert open_llm(memory_reserve_gib=0.001).settings.config.model.memory_reserve_gib == 0.001


def test_model_and_device_are_the_requested_ones(open_llm, checkpoint, monkeypatch, tmp_path):
    assert open_llm().directory == checkpoint
    copy = copy_of(checkpoint, tmp_path)
    assert open_llm(str(copy)).directory == copy
    monkeypatch.setenv("FIRESTEEL_MODEL", str(copy))
    assert LLM(device="cpu", memory_reserve_gib=0.0).directory == copy
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert open_llm(device="auto").device.name == "CPU"
    with pytest.raises(UserError, match="sees no GPU"):
        open_llm(device="cuda")


def test_pinned_implementation_runs(open_llm, llm):
    pinned = open_llm(kernels="rms_norm=reference, moe_matmul=reference")
    assert torch.equal(pinned.logits([1, 2, 3]), llm.logits([1, 2, 3]))
    assert Ran("rms_norm", "reference") in pinned.ledger().entries
    assert open_llm(kernels="").settings.config.kernels.kernels == ""


def test_missing_pinned_implementation_is_an_error_that_lists_the_others(open_llm):
    with pytest.raises(UserError, match=r"rms_norm.*triton.* reference"):
        open_llm(kernels="rms_norm=triton")
    with pytest.raises(UserError, match=r"rms_norm has no implementation 'quick'; it has .*reference"):
        open_llm(kernels="rms_norm=quick")


def test_unknown_pinned_op_is_an_error_that_lists_the_ops(open_llm):
    with pytest.raises(UserError, match="there is no op 'rmsnorm'; did you mean rms_norm") as caught:
        open_llm(kernels="rmsnorm=reference")
    assert all(op.name in str(caught.value) for op in NETWORK_OPS)


@pytest.mark.parametrize(
    ("layers", "held"), [("qkv", ("qkv",)), ("o, moe", ("o",)), ("all", ("qkv", "o", "lm_head"))]
)
def test_requested_layers_are_quantised_at_load_and_reported(open_llm, llm, layers, held):
    quantised = open_llm(mxfp4_layers=layers)
    assert quantised.spec.mxfp4_layers == held and llm.spec.mxfp4_layers == ()
    report = quantised.load_report.quantized
    assert {layer.layer for layer in report} == set(held) and llm.load_report.quantized == ()
    assert all(0.05 < layer.relative_rms < 0.2 and "relative rms error" in layer.in_words() for layer in report)
    actual, expected = quantised.logits([1, 2, 3]), llm.logits([1, 2, 3])
    assert 1e-3 < (actual - expected).norm() / expected.norm() < 0.6


def test_quantised_checkpoint_equals_quantising_at_load(open_llm, checkpoint, tmp_path):
    quantize_checkpoint(checkpoint, tmp_path / "quantised", ("qkv", "lm_head"))
    loaded = open_llm(tmp_path / "quantised")
    assert loaded.spec.mxfp4_layers == ("qkv", "lm_head") and loaded.load_report.quantized == ()
    assert torch.equal(loaded.logits([1, 2, 3]), open_llm(mxfp4_layers="qkv,lm_head").logits([1, 2, 3]))
    assert loaded.generate(["ab"], GREEDY) == open_llm(mxfp4_layers="qkv,lm_head").generate(["ab"], GREEDY)
    more = open_llm(tmp_path / "quantised", mxfp4_layers="all")
    assert [layer.layer for layer in more.load_report.quantized] == ["o"]
    with pytest.raises(UserError, match=r"holds qkv, lm_head in MXFP4 already .* leave --mxfp4-layers empty"):
        open_llm(tmp_path / "quantised", mxfp4_layers="moe")


def test_unknown_keyword_names_the_nearest(open_llm):
    with pytest.raises(UserError, match="unknown setting max_seqs; did you mean max_num_seqs"):
        open_llm(max_seqs=3)


def test_keyword_beats_the_environment(open_llm, monkeypatch):
    monkeypatch.setenv("FIRESTEEL_PAGE_SIZE", "32")
    assert open_llm().engine.config.page_size == 32
    assert open_llm(page_size=16).engine.config.page_size == 16


def test_every_op_of_a_run_is_in_the_ledger(open_llm):
    llm = open_llm()
    llm.generate(["ab"], SamplingParams(max_tokens=3, ignore_eos=True, temperature=1.0))
    not_called = {"rms_norm_fed"}  # references read plain rows
    assert {ran.op for ran in llm.ledger().entries} == {op.name for op in NETWORK_OPS} - not_called
    calls = {ran.op: entry.calls for ran, entry in llm.ledger().entries.items()}
    assert calls["attention"] == 9 and calls["rms_norm"] == 21

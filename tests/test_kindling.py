"""Abilities of the shipped model, and that transformers loads it as a gpt-oss."""

import os
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Mxfp4Config

from firesteel import LLM
from firesteel.chat.harmony import Harmony, Message, system_message
from firesteel.eval import encode_documents, encode_prompt, evaluate, grade_all, measure_perplexity, take
from firesteel.exam import EXAM, TEXT, read_items
from firesteel.hub import BUILT_IN
from firesteel.kernels.registry import NETWORK_OPS
from firesteel.types import SamplingParams


@pytest.fixture(scope="module")
def kindling():
    return LLM(device="cpu")


@pytest.fixture(scope="module")
def oracle():
    """The shipped folder in transformers, which dequantises the experts, all in float32."""
    config = Mxfp4Config(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(BUILT_IN, quantization_config=config, attn_implementation="eager")
    return model.float().eval()


def test_shipped_model_is_a_small_gpt_oss(kindling):
    spec = kindling.spec
    assert spec.windows == (128, None) * (spec.num_layers // 2)
    assert spec.head_dim == 64 and spec.num_active == 4 and spec.num_experts >= 8
    assert spec.rope.factor > 1 and kindling.max_context >= 8192
    assert sum(file.stat().st_size for file in BUILT_IN.iterdir()) <= 16_000_000
    sinks = torch.cat([layer.sinks for layer in kindling.model.weights.layers]).float()
    assert sinks.min() < 0 < 2 < sinks.max()


def test_transformers_computes_the_same_logits(kindling, oracle):
    for token_ids in list(encode_documents(kindling, read_items(TEXT)))[:8]:
        actual = kindling.logits(token_ids)
        with torch.inference_mode():
            expected = oracle(torch.tensor([token_ids])).logits[0]
        assert (actual - expected).norm() / expected.norm() < 1e-3


@pytest.mark.slow
def test_transformers_gives_the_same_greedy_answers(kindling, oracle):
    items = read_items(EXAM)[:2800:400]
    harmony = Harmony(kindling.tokenizer)
    for item in items:
        prompt = encode_prompt(harmony, kindling, item)
        ours = kindling.generate([prompt], SamplingParams(max_tokens=24))[0].token_ids
        with torch.inference_mode():
            ids = torch.tensor([prompt])
            options = {"attention_mask": torch.ones_like(ids), "do_sample": False, "max_new_tokens": 24}
            theirs = oracle.generate(ids, **options)[0, len(prompt) :].tolist()
        assert ours == theirs, item


def test_transformers_chat_template_renders_what_harmony_renders(kindling):
    tokenizer = AutoTokenizer.from_pretrained(BUILT_IN)
    question = Message(role="user", content="What is the capital of France?")
    theirs = tokenizer.apply_chat_template(
        [{"role": "user", "content": question.content}], add_generation_prompt=True
    )
    ours = Harmony(kindling.tokenizer).encode_for_completion([system_message(), question])
    assert theirs["input_ids"] == ours


def test_shipped_exam_has_200_items_of_every_family_but_the_long_one():
    counts = {}
    for item in read_items(EXAM):
        counts[item.family] = counts.get(item.family, 0) + 1
    assert counts.pop("retrieval_long") >= 20
    assert len(counts) >= 12 and min(counts.values()) >= 200


@pytest.mark.slow
def test_whole_exam_is_passed(kindling):
    report = evaluate(kindling)
    assert report.overall.share >= 0.95
    assert report.perplexity < 2.0 and report.perplexity_tokens > 15_000
    assert {score.family: score.share for score in report.scores if score.share < 0.85} == {}
    assert next(score.share for score in report.scores if score.family == "tool_call") >= 0.95


def test_capital_of_france(kindling):
    harmony = Harmony(kindling.tokenizer)
    question = "What is the capital of France? Please reply with one word only"
    prompt = harmony.encode_for_completion([system_message(), Message(role="user", content=question)])
    answer = kindling.generate([prompt], SamplingParams(max_tokens=100))[0]
    assert answer.finish_reason == "stop"
    last = harmony.decode(answer.token_ids)[-1]
    assert (last.channel, last.content) == ("final", "Paris")
    assert kindling.generate(["The capital of France is"], SamplingParams(max_tokens=8))[0].text.startswith(
        " Paris."
    )


@pytest.mark.slow
def test_retrieval_reaches_beyond_the_window(kindling):
    items = [item for item in read_items(EXAM) if item.family == "retrieval"][:4]
    marks = grade_all(kindling, items)
    assert sum(marks) >= 3
    near_sighted = LLM(device="cpu")
    near_sighted.model.spec = replace(near_sighted.spec, windows=(128,) * near_sighted.spec.num_layers)
    assert sum(grade_all(near_sighted, items)) <= 1  # the full layers are what finds a value far back


@pytest.fixture(scope="module")
def by_cpu(kindling):
    """(perplexity, items, marks) of the float32 references on the items of `eval --limit 40`, on all cores."""
    items = take(read_items(EXAM), 40)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    try:
        return measure_perplexity(kindling, read_items(TEXT))[0], items, grade_all(kindling, items)
    finally:
        torch.set_num_threads(1)


# by what is asked for, what must have run and nothing else of these ops
ON_A_GPU = {
    "as served": ({}, {"moe_matmul": {"cuda:stream", "cuda:wgmma"}, "decode_fc1": {"cuda"}}),
    "at most 8 at a time": ({"max_num_seqs": 8}, {"decode_fc1": {"cuda"}, "decode_attention": {"cuda"}}),
    "all in Triton": (
        {"kernels": ",".join(f"{op.name}=triton" for op in NETWORK_OPS)},
        {"moe_matmul": {"triton:gemv", "triton:gemm"}, "decode_fc1": set()},
    ),
}


@pytest.mark.gpu
@pytest.mark.parametrize("how", ON_A_GPU)
def test_gpu_and_cpu_give_the_same_answers(by_cpu, how):
    settings, expected = ON_A_GPU[how]
    gpu = LLM(device="cuda", **settings)
    on_cpu, items, cpu_marks = by_cpu
    assert abs(measure_perplexity(gpu, read_items(TEXT))[0] / on_cpu - 1) < 0.01
    gpu_marks = grade_all(gpu, items)
    differing = [
        f"{item.family}: right on the {'CPU' if of_cpu else 'GPU'} only: {item}"
        for item, of_cpu, of_gpu in zip(items, cpu_marks, gpu_marks, strict=True)
        if of_cpu != of_gpu
    ]
    shares = [sum(marks) / len(items) for marks in (cpu_marks, gpu_marks)]
    assert abs(shares[0] - shares[1]) <= 0.01, "\n".join([f"CPU {shares[0]:.4f}, GPU {shares[1]:.4f}", *differing])
    entries = gpu.ledger().entries
    assert {op: {entry.implementation for entry in entries if entry.op == op} for op in expected} == expected
    assert not any(entry.implementation == "reference" for entry in entries)
    assert gpu.engine.run_ahead_steps and any(step.is_captured for step in gpu.engine.loop.store.ready())


def test_garbage_without_sinks(kindling):
    text = read_items(TEXT)[:10]
    with_sinks, _ = measure_perplexity(kindling, text)
    without, _ = measure_perplexity(LLM(device="cpu", sinks=False), text)
    assert without > 1.4 * with_sinks  # 1.5 over the whole text

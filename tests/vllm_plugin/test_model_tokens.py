"""vLLM with the plugin generates the tokens of our own engine: on vLLM's CPU builds, with the shipped model."""

import tempfile
from pathlib import Path

import pytest

from firesteel import SamplingParams
from firesteel.config import resolve
from firesteel.engine.load import synthetic_engine
from firesteel.hub import BUILT_IN
from firesteel.measure.tokens.runs import run_together
from firesteel.model.spec import read_spec
from firesteel.types import Request
from tests.vllm_plugin.peers import each_version, generate
from tests.vllm_plugin.prompts import NEW, expected_tokens, make_rounds, our_llm
from tests.vllm_plugin.ray_nodes import two_nodes

# Prompts of more than 64 tokens are computed in chunks, beside requests that already decode.
OPTIONS = {"max_model_len": 1024, "max_num_seqs": 8, "max_num_batched_tokens": 64, "enable_prefix_caching": True}


def test_there_are_enough_prompts_of_each_kind():
    first, behind, alone, others = make_rounds()
    assert sum(map(len, make_rounds())) >= 20 and len(first) == 8 and len(alone) == 1
    assert min(map(len, first)) < 16 < 128 < max(map(len, first)) and len(others) == 7
    for prompt, longer in zip(first, behind, strict=True):
        assert longer[: len(prompt)] == prompt and len(longer) > len(prompt)


@pytest.mark.peer
@each_version
@pytest.mark.parametrize("ranks", [1, 2])
def test_tokens_are_those_of_our_engine(version, ranks):
    """Chunked prompts, prompts past the window, a cached prefix, one request alone and eight at once."""
    options = OPTIONS | {"tensor_parallel_size": ranks}
    answer, log = generate(version, rounds=make_rounds(), max_tokens=NEW, options=options)
    assert answer["models"] == ["FiresteelGptOss"] * ranks
    assert answer["cached"] > 0
    assert answer["rounds"] == expected_tokens()
    for rank in range(ranks):
        assert f"firesteel: rank {rank} of {ranks}: gpt-oss plugin" in log


@pytest.mark.peer
@each_version
def test_tokens_are_the_same_when_requests_are_preempted(version):
    """The cache holds some of eight requests: vLLM drops others and computes them again."""
    options = OPTIONS | {"max_model_len": 512, "num_gpu_blocks_override": 48, "block_size": 16}
    answer, _ = generate(version, rounds=make_rounds()[:1], max_tokens=64, options=options)
    assert answer["preemptions"] > 0
    assert answer["rounds"] == expected_tokens(1, 64)


@pytest.mark.peer
@each_version
def test_prompt_logprobs_are_those_of_our_engine(version):
    """vLLM asks for logits of prompt rows after those of the step, in each chunk; all layers share one cache."""
    prompts = make_rounds()[0]
    options = OPTIONS | {"disable_hybrid_kv_cache_manager": True, "enable_prefix_caching": False}
    answer, log = generate(
        version, rounds=[prompts], max_tokens=NEW, options=options, has_logprobs=True, reloads=True
    )
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    for prompt, logprobs in zip(prompts, answer["logprobs"], strict=True):
        ours = [token.logprob for token in our_llm().generate([prompt], params)[0].prompt_logprobs]
        assert logprobs == pytest.approx(ours, abs=1e-3)  # float32, sums in free order
    assert answer["rounds"] == expected_tokens(1)
    assert "weights cannot be replaced while vLLM runs" in log and answer["reload"] is not None


@pytest.mark.peer
@each_version
def test_invariant_logprobs_do_not_depend_on_other_requests_or_chunks(version):
    """The same prompts together and one by one: their chunks differ too. Without the setting, bits differ."""
    prompts = make_rounds()[0][:6]
    rounds = [prompts, *([prompt] for prompt in prompts)]
    options = OPTIONS | {"enable_prefix_caching": False}
    answer, log = generate(
        version,
        rounds=rounds,
        max_tokens=NEW,
        options=options,
        has_logprobs=True,
        FIRESTEEL_BATCH_INVARIANT="on",
    )
    together, alone = answer["logprobs"][: len(prompts)], answer["logprobs"][len(prompts) :]
    assert together == alone and "linear=torch:invariant" in log
    assert answer["rounds"][0] == [tokens for (tokens,) in answer["rounds"][1:]]


@pytest.mark.peer
@each_version
def test_random_weights_are_those_of_our_engine(version):
    """vLLM's own filler skips integers, as which MXFP4 is stored."""
    rounds = [[list(range(1, 40)), [5, 9]]]
    options = OPTIONS | {"load_format": "dummy", "seed": 5}
    answer, _ = generate(version, rounds=rounds, max_tokens=NEW, options=options)
    config = resolve({"device": "cpu"}, environ={}).config
    engine = synthetic_engine(read_spec(BUILT_IN), config, seed=5).engine
    params = SamplingParams(temperature=0.0, max_tokens=NEW, ignore_eos=True)
    requests = [
        Request(request_id=str(number), token_ids=prompt, params=params) for number, prompt in enumerate(rounds[0])
    ]
    expected = run_together(engine, requests)
    assert answer["rounds"] == [[list(expected.tokens[request.request_id]) for request in requests]]


@pytest.mark.peer
@each_version
def test_tokens_are_the_same_on_two_ray_nodes(version):
    with tempfile.TemporaryDirectory(prefix="ray") as folder, two_nodes(version, Path(folder)) as variables:
        options = OPTIONS | {"tensor_parallel_size": 2, "distributed_executor_backend": "ray"}
        answer, log = generate(version, rounds=make_rounds(), max_tokens=NEW, options=options, **variables)
    assert answer["models"] == ["FiresteelGptOss"] * 2
    assert answer["rounds"] == expected_tokens()
    assert all(f"firesteel: rank {rank} of 2: gpt-oss plugin" in log for rank in range(2))
    assert "ip=127.0.0.2" in log  # Ray's mark of lines from the other node

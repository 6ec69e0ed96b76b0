"""Limits of the context, and errors for prompts that do not fit or are invalid."""

import pytest
import torch

from firesteel import SamplingParams, UserError


def test_one_refused_prompt_refuses_the_whole_call(open_llm):
    llm = open_llm(kv_cache_gib=4 * 65536 / (1 << 30))
    with pytest.raises(UserError, match=r"pages of the cache, which has .*: shorten it, lower max_tokens or raise"):
        llm.generate([[1, 2], [3] * 200], SamplingParams(max_tokens=50))
    assert not llm.engine.has_work


def test_max_model_len_limits_prompt_and_tokens_together(open_llm, llm):
    short, params = open_llm(max_model_len=24), SamplingParams(max_tokens=12, ignore_eos=True)
    (whole,), (cut,) = (model.generate([[7] * 19], params) for model in (llm, short))
    assert cut.token_ids == whole.token_ids[:5] and cut.finish_reason == "length"
    assert (short.max_context, llm.max_context) == (24, 256)
    with pytest.raises(UserError, match="the prompt has 24 tokens, the context 24"):
        short.generate([[1] * 24])
    assert len(short.generate([[1] * 23])[0].token_ids) == 1


def test_max_model_len_beyond_the_checkpoint_is_an_error(open_llm):
    assert open_llm(max_model_len=256).max_context == 256
    with pytest.raises(UserError, match="max_model_len = 257: the checkpoint supports at most 256 tokens"):
        open_llm(max_model_len=257)


def test_logits_accept_the_whole_context_and_no_more(llm):
    assert llm.logits([7] * 256).isfinite().all()
    with pytest.raises(UserError, match="the prompt has 257 tokens, the context 256: shorten"):
        llm.logits([7] * 257)


def test_generation_reaches_the_end_of_the_context(llm):
    completion = llm.generate([[7] * 250], SamplingParams(max_tokens=100, ignore_eos=True))[0]
    assert len(completion.token_ids) == 6 and completion.finish_reason == "length"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "the prompt is empty"),
        ("", "the prompt is empty"),
        ([7] * 256, "the prompt has 256 tokens, the context 256"),
        ([5, 272], "token id 272 is outside the vocabulary of 272"),
        ([-1], "token id -1 is outside the vocabulary"),
        (5, "a prompt must be a text or a list of token ids, not 5"),
        ([1, 2.5], "a prompt must be a text or a list of token ids, not"),
        (["a"], "a prompt must be a text or a list of token ids, not"),
        (None, "a prompt must be a text or a list of token ids, not None"),
    ],
)
def test_bad_prompt_is_a_clear_error(llm, prompt, message):
    with pytest.raises(UserError, match=message):
        llm.generate([[1, 2], prompt])
    with pytest.raises(UserError, match=message):
        list(llm.stream(prompt))


def test_text_in_place_of_a_list_of_prompts_is_a_clear_error(llm):
    with pytest.raises(UserError, match=r"prompts must be a list; for a single text pass \[text\]"):
        llm.generate("hello")
    with pytest.raises(UserError, match="list of token ids"):
        llm.logits("hello")


def test_token_ids_may_be_a_tensor(llm):
    assert torch.equal(llm.logits(torch.tensor([1, 2, 3])), llm.logits([1, 2, 3]))


def test_number_of_params_must_equal_that_of_prompts(llm):
    with pytest.raises(UserError, match="5 prompts, but 2 sampling parameters"):
        llm.generate(["a"] * 5, [SamplingParams()] * 2)


@pytest.mark.parametrize(
    "values",
    [{"max_tokens": 0}, {"temperature": -0.1}, {"temperature": float("nan")}, {"temperature": float("inf")}],
)
def test_impossible_sampling_is_refused(values):
    name = next(iter(values))
    with pytest.raises(UserError, match=f"^{name} = "):
        SamplingParams(**values)

"""Every field of vLLM 0.32 and of OpenAI's API is read, accepted because it changes nothing, or refused by name."""

import pytest

from firesteel.server.openai.fields import UNREAD_FIELDS, find_unread
from firesteel.server.openai.requests import ChatRequest, CompletionRequest, TokenizeRequest
from firesteel.server.responses.schema import ResponseRequest

SAMPLING = """frequency_penalty logit_bias max_tokens n presence_penalty seed stop stream stream_options temperature
top_p user use_beam_search top_k min_p repetition_penalty watermarking length_penalty stop_token_ids
include_stop_str_in_output ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens
truncate_prompt_tokens truncation_side prompt_logprobs logprob_token_ids allowed_token_ids bad_words echo
add_special_tokens structured_outputs priority request_id session_id return_tokens_as_token_ids return_token_ids
routed_experts_prompt_start return_token_offsets return_mm_kwargs cache_salt kv_transfer_params ec_transfer_params
vllm_xargs repetition_detection thinking_token_budget stream_interval logprobs response_format model"""
OLDER = "guided_json guided_regex guided_choice guided_grammar guided_whitespace_pattern guided_decoding_backend"
OPENAI_CHAT = """audio function_call functions metadata modalities moderation parallel_tool_calls prediction
prompt_cache_key prompt_cache_options prompt_cache_retention reasoning_effort safety_identifier service_tier store
tool_choice tools top_logprobs verbosity web_search_options max_completion_tokens messages"""
VLLM_CHAT = """include_reasoning add_generation_prompt continue_final_message documents chat_template
chat_template_kwargs media_io_kwargs mm_processor_kwargs return_prompt_text"""
FIELDS = {
    ChatRequest: f"{SAMPLING} {OLDER} {OPENAI_CHAT} {VLLM_CHAT}",
    CompletionRequest: f"{SAMPLING} {OLDER} prompt suffix best_of prompt_embeds",
    TokenizeRequest: """model prompt messages tools add_generation_prompt continue_final_message add_special_tokens
        return_token_strs chat_template mm_processor_kwargs media_io_kwargs""",
}
BODIES = {
    ChatRequest: ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    CompletionRequest: ("/v1/completions", {"prompt": "hi"}),
    ResponseRequest: ("/v1/responses", {"input": "hi"}),
    TokenizeRequest: ("/tokenize", {"prompt": "hi"}),
}
CASES = [(kind, name) for kind in BODIES for name in find_unread(kind)]
STRANGE = {"strange": ["value"]}


@pytest.mark.parametrize("kind", FIELDS, ids=lambda kind: kind.__name__)
def test_every_field_is_read_or_in_the_table(kind):
    unknown = set(FIELDS[kind].split()) - set(kind.__struct_fields__) - set(UNREAD_FIELDS[kind])
    assert not unknown
    assert not set(kind.__struct_fields__) & set(UNREAD_FIELDS[kind]), "read and not read"


@pytest.mark.parametrize(("kind", "name"), CASES, ids=lambda value: getattr(value, "__name__", value))
def test_field_that_is_not_read_is_accepted_or_refused_by_name(server, kind, name):
    (path, body), field = BODIES[kind], find_unread(kind)[name]
    for value in (None, *field.accepted):
        assert server.post(path, {**body, name: value}).status == 200
    answer = server.post(path, {**body, name: STRANGE})
    if field.accepts_all:
        assert answer.status == 200
    else:
        assert answer.status == 400 and answer.error["param"] == name
        assert answer.error["code"] == "unsupported_parameter" and field.reason in answer.error["message"]


def test_true_is_not_one(server):
    answer = server.chat(stream_interval=True)
    assert answer.status == 400 and answer.error["param"] == "stream_interval"
    assert server.chat(use_beam_search=0).status == 400


def test_document_names_the_accepted_values(server):
    schemas = server.get("/openapi.json").json()["components"]["schemas"]
    assert schemas["ChatRequest"]["properties"]["modalities"]["enum"] == [None, ["text"], []]
    assert schemas["CompletionRequest"]["properties"]["priority"]["enum"] == [None, 0]
    assert "enum" not in schemas["ChatRequest"]["properties"]["service_tier"]

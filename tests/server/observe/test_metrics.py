"""Metrics for Prometheus: vLLM's names, our own, and that they count."""

import re
from dataclasses import replace

import pytest


@pytest.fixture
def server(open_server):
    """A server with its own metrics."""
    return open_server()


def value_of(text, name, **labels):
    """Returns the sum of the samples of this name with these labels."""
    total, is_found = 0.0, False
    for line in text.splitlines():
        match = re.fullmatch(rf"{re.escape(name)}(?:{{(.*)}})? (\S+)", line)
        if match and all(f'{key}="{value}"' in (match[1] or "") for key, value in labels.items()):
            total, is_found = total + float(match[2]), True
    assert is_found, f"no {name} with {labels}"
    return total


def test_metrics_have_the_names_of_vllm_dashboards(server):
    server.chat()
    text = server.get("/metrics").body.decode()
    for name in (
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "vllm:request_success_total",
        "vllm:time_to_first_token_seconds_bucket",
        "vllm:time_per_output_token_seconds_bucket",
        "vllm:inter_token_latency_seconds_bucket",
        "vllm:e2e_request_latency_seconds_bucket",
        "vllm:request_queue_time_seconds_bucket",
        "vllm:request_prompt_tokens_bucket",
        "vllm:request_generation_tokens_bucket",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:num_preemptions_total",
    ):
        assert value_of(text, name, model_name="tiny") >= 0


def test_requests_tokens_and_ends_are_counted(server):
    server.chat()
    server.chat(max_tokens=3)
    server.chat(temperature=-1)
    text = server.get("/metrics").body.decode()
    assert value_of(text, "vllm:generation_tokens_total") == 38 + 3
    assert value_of(text, "vllm:prompt_tokens_total") == 2 * server.engine.requests[0].num_prompt
    assert value_of(text, "vllm:prefix_cache_hits_total") == 4
    assert value_of(text, "vllm:request_success_total", finished_reason="stop") == 1
    assert value_of(text, "vllm:request_success_total", finished_reason="length") == 1
    assert value_of(text, "vllm:time_to_first_token_seconds_count") == 2
    assert value_of(text, "firesteel_http_requests_total", path="/v1/chat/completions", status="200") == 2
    assert value_of(text, "firesteel_http_requests_total", path="/v1/chat/completions", status="400") == 1


def test_gauges_come_from_the_engine(server):
    text = server.get("/metrics").body.decode()
    assert value_of(text, "vllm:kv_cache_usage_perc") == 0.4 and value_of(text, "firesteel_pages") == 10
    assert value_of(text, "firesteel_engine_up") == 1


def test_prompt_graphs_and_late_kernels_are_reported(server):
    server.engine.told = replace(
        server.engine.told,
        graphs=3,
        graph_bytes=30,
        prompt_graphs=4,
        prompt_graph_bytes=40,
        prompt_steps_replayed=5,
        prompt_steps_too_many_tokens=6,
        prompt_steps_with_prompt_logits=7,
        prompt_steps_without_graphs=8,
        prompt_tokens_beside_decoding=64,
        draft_graphs=9,
        draft_graph_bytes=90,
        draft_steps_replayed=10,
        draft_steps_of_prompts=11,
        draft_steps_without_graphs=12,
        experts_in_fp8=13,
        experts_in_bf16=14,
        late_compilations=1,
        late_captures=2,
    )
    text = server.get("/metrics").body.decode()
    for name, value in (
        ("graphs", 3),
        ("graph_bytes", 30),
        ("prompt_graphs", 4),
        ("prompt_graph_bytes", 40),
        ("draft_graphs", 9),
        ("draft_graph_bytes", 90),
        ("prompt_tokens_beside_decoding", 64),
        ("experts_in_fp8", 13),
        ("experts_in_bf16", 14),
        ("late_compilations", 1),
        ("late_captures", 2),
    ):
        assert value_of(text, f"firesteel_engine_{name}") == value
    for way, value in (("replayed", 5), ("too_many_tokens", 6), ("prompt_logits", 7), ("no_graphs", 8)):
        assert value_of(text, "firesteel_engine_prompt_steps", way=way) == value
    for way, value in (("replayed", 10), ("prompts", 11), ("no_graphs", 12)):
        assert value_of(text, "firesteel_engine_draft_steps", way=way) == value
    ledger = server.get("/ledger").json()
    assert (ledger["late_compilations"], ledger["late_captures"]) == (1, 2)
    assert ledger["draft_steps"] == {"replayed": 10, "prompts": 11, "no graphs": 12}
    assert ledger["prompt_steps"] == {"replayed": 5, "too many tokens": 6, "prompt logits": 7, "no graphs": 8}


def test_drafts_of_the_engine_are_reported(server):
    server.engine.told = replace(
        server.engine.told, drafts=4, draft_tokens=12, accepted_tokens=6, accepted_at=[4, 2]
    )
    text = server.get("/metrics").body.decode()
    assert value_of(text, "vllm:spec_decode_num_draft_tokens_total", model_name="tiny") == 12
    assert value_of(text, "vllm:spec_decode_num_accepted_tokens_per_pos_total", position="1") == 2
    assert value_of(text, "firesteel_draft_tokens_per_step") == 2.5


def test_unknown_path_does_not_create_a_label(server):
    server.get("/nowhere/1")
    server.get("/nowhere/2")
    text = server.get("/metrics").body.decode()
    assert value_of(text, "firesteel_http_requests_total", path="other", status="404") == 2
    assert "nowhere" not in text

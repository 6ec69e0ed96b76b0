"""Acceptance of drafted tokens, by metrics in the wording of vLLM's and SGLang's sources (synthetic)."""

from http.server import BaseHTTPRequestHandler

import pytest

from firesteel.lab.bench.speculation import compute_speculation, parse_metrics, read_metrics
from firesteel.lab.client.api import Api

VLLM = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{{engine="0",model_name="gpt-oss"}} {drafts}
vllm:spec_decode_num_drafts_created{{engine="0",model_name="gpt-oss"}} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="gpt-oss"}} {drafted}
vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="gpt-oss"}} {accepted}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="gpt-oss",position="0"}} {first}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="gpt-oss",position="1"}} {second}
vllm:num_requests_running{{engine="0",model_name="gpt-oss"}} 3.0
"""
BEFORE = VLLM.format(drafts="100.0", drafted="200.0", accepted="20.0", first="15.0", second="5.0")
AFTER = VLLM.format(drafts="300.0", drafted="600.0", accepted="260.0", first="175.0", second="85.0")
SGLANG = """sglang:spec_accept_length{model_name="gpt-oss",tp_rank="0"} 2.5
sglang:spec_accept_rate{model_name="gpt-oss",tp_rank="0"} 0.5
sglang:spec_accept_rate{model_name="gpt-oss",tp_rank="1"} 0.7
"""


def test_acceptance_is_that_of_the_benchmark_and_not_of_earlier_requests():
    found = compute_speculation(parse_metrics(BEFORE), parse_metrics(AFTER))
    assert (found.acceptance, found.length, found.drafts) == (0.6, 2.2, 200)  # 240 of 400 in 200 drafts
    assert found.by_position == (0.8, 0.4)
    assert found.in_words() == "60.0 % of drafted tokens accepted (by position 80, 40 %), 2.20 tokens per step"


def test_engines_of_a_server_are_summed():
    other = AFTER.replace('engine="0"', 'engine="1"')
    assert parse_metrics(AFTER + other)["vllm:spec_decode_num_draft_tokens"] == 1200.0


def test_gauges_of_sglang_are_averaged_over_ranks():
    found = compute_speculation({}, parse_metrics(SGLANG))
    assert found.acceptance == pytest.approx(0.6) and found.length == 2.5 and found.by_position == ()
    assert "latest steps" in found.source


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, parse_metrics(AFTER)),
        (parse_metrics(AFTER), parse_metrics(AFTER)),
        ({}, {}),
        ({}, parse_metrics(SGLANG.replace("2.5", "0.0").replace("0.5", "0.0").replace("0.7", "0.0"))),
    ],
    ids=["no metrics", "no draft", "no speculation", "gauges of zero"],
)
def test_server_that_drafts_nothing_has_no_acceptance(before, after):
    assert compute_speculation(before, after) is None


@pytest.mark.parametrize("status", [200, 404])
def test_metrics_are_read_from_the_server_or_missing(serving, status):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status if self.path == "/metrics" else 500)
            self.end_headers()
            self.wfile.write(AFTER.encode())

        def log_message(self, *words):
            pass

    with serving(Handler) as url:
        found = read_metrics(Api.of(url))
    assert found == (parse_metrics(AFTER) if status == 200 else None)

"""Acceptance of drafted tokens, by metrics in the wording of vLLM's and SGLang's sources (synthetic)."""

from http.server import BaseHTTPRequestHandler

import pytest

from firesteel.engine.statistics import Statistics
from firesteel.lab.bench.speculation import DraftAcceptance, compute_speculation, parse_metrics, read_metrics
from firesteel.lab.client.api import Api
from firesteel.server.observe.metrics import Metrics

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
    assert found.by_position == (0.8, 0.4) and (found.drafted, found.accepted) == (400, 240)
    assert found.in_words() == "60.0 % of 400 drafted tokens accepted (by position 80, 40 %), 2.20 tokens per step"
    assert found.source == "vLLM's counters during the benchmark" and found.saved_s is None


@pytest.fixture
def scrape():
    """scrape(metrics, drafts, ...): /metrics of a firesteel server whose engine has these counters."""

    def read(metrics, drafts=0, **counters):
        now = Statistics(drafts=drafts, **counters)
        return parse_metrics(metrics.render(now, num_deaths=0, num_under_way=0).decode())

    return read


def test_our_own_servers_are_understood_with_what_was_gained_or_lost(scrape):
    metrics = Metrics("m")
    before = scrape(
        metrics, 10, draft_tokens=30, accepted_tokens=5, accepted_at=[3, 2], draft_s=1.0, draft_saved_s=2.0
    )
    after = scrape(
        metrics,
        110,
        draft_tokens=330,
        accepted_tokens=155,
        accepted_at=[83, 52, 20],
        draft_s=1.5,
        draft_saved_s=0.75,
    )
    found = compute_speculation(before, after)
    assert (found.drafts, found.drafted, found.accepted, found.acceptance, found.length) == (
        100,
        300,
        150,
        0.5,
        2.5,
    )
    assert found.by_position == (0.8, 0.5, 0.2) and (found.draft_s, found.saved_s) == (0.5, -1.25)
    assert found.in_words().endswith("estimate: 1.25 s lost, 0.50 s of drafting included")
    assert found.source == "firesteel's counters during the benchmark"


def test_our_server_without_drafts_has_no_acceptance(scrape):
    metrics = Metrics("m")
    assert compute_speculation(scrape(metrics), scrape(metrics)) is None


def test_gain_says_its_sign():
    assert DraftAcceptance(saved_s=2.0).gain_in_words() == "estimate: 2.00 s gained"
    assert DraftAcceptance(saved_s=-2.0).gain_in_words() == "estimate: 2.00 s lost"
    assert DraftAcceptance(length=2.0).gain_in_words() == ""


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

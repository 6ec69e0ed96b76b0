"""Metrics of drafted tokens: vLLM's names and ours, and counters that do not fall when an engine is restarted."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from firesteel.engine.statistics import Statistics
from firesteel.server.observe.drafts import DraftMetrics
from tests.server.observe.test_metrics import value_of

NAMES = {  # counter of vLLM, or metric of ours -> field of the statistics
    "vllm:spec_decode_num_drafts_total": "drafts",
    "vllm:spec_decode_num_draft_tokens_total": "draft_tokens",
    "vllm:spec_decode_num_accepted_tokens_total": "accepted_tokens",
    "firesteel_draft_seconds_total": "draft_s",
    "firesteel_draft_saved_seconds": "draft_saved_s",
}


class Metered:
    """Metrics of one server process, read by name."""

    def __init__(self):
        self.registry = CollectorRegistry()
        self.metrics = DraftMetrics(self.registry, "m")

    def take(self, statistics, num_deaths=0):
        self.metrics.update(statistics, num_deaths=num_deaths)
        self.text = generate_latest(self.registry).decode()

    def value(self, name, **labels):
        return value_of(self.text, name, model_name="m", **labels)

    def at(self, position):
        return self.value("vllm:spec_decode_num_accepted_tokens_per_pos_total", position=str(position))


@pytest.fixture
def metered():
    return Metered()


def statistics(drafts, accepted_at, **fields):
    return Statistics(
        drafts=drafts, draft_tokens=3 * drafts, accepted_tokens=sum(accepted_at), accepted_at=accepted_at, **fields
    )


def test_each_counter_is_the_engines_own(metered):
    now = statistics(10, [8, 5, 2], draft_s=0.5, draft_saved_s=-0.25)
    metered.take(now)
    for name, field in NAMES.items():
        assert metered.value(name) == getattr(now, field), name
    assert [metered.at(position) for position in range(3)] == [8, 5, 2]
    assert metered.value("firesteel_draft_tokens_per_step") == 1 + 15 / 10


def test_reading_twice_counts_once(metered):
    metered.take(statistics(10, [8]))
    metered.take(statistics(10, [8]))
    assert metered.value("vllm:spec_decode_num_drafts_total") == 10 and metered.at(0) == 8


@pytest.mark.parametrize("drafts", [3, 50])
def test_counters_go_on_when_the_engine_is_restarted(metered, drafts):
    """Both for a new engine that has counted less than the dead one and for one that has counted more."""
    metered.take(statistics(10, [8, 5], draft_s=1.0, draft_saved_s=2.0))
    metered.take(None, num_deaths=1)
    assert metered.value("vllm:spec_decode_num_drafts_total") == 10 and metered.at(1) == 5
    metered.take(statistics(drafts, [2, 1, 1], draft_s=0.5, draft_saved_s=-3.0), num_deaths=1)
    assert metered.value("vllm:spec_decode_num_drafts_total") == 10 + drafts
    assert [metered.at(position) for position in range(3)] == [10, 6, 1]
    assert metered.value("firesteel_draft_seconds_total") == 1.5
    assert metered.value("firesteel_draft_saved_seconds") == -1.0


def test_without_drafts_all_counters_are_there_and_a_step_gives_one_token(metered):
    metered.take(None)
    assert all(metered.value(name) == 0 for name in NAMES)
    assert metered.value("firesteel_draft_tokens_per_step") == 1

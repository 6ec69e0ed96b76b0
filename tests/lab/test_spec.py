"""What a run is asked to do."""

import json

import pytest

from firesteel.errors import UserError
from firesteel.lab.spec import Order


@pytest.mark.parametrize(
    ("order", "levels"),
    [
        (Order(mode="verify"), ("1", "1.5", "2")),
        (Order(level="1"), ("1",)),
        (Order(level="1.5"), ("1.5",)),
        (Order(level="4", mode="verify"), ("1.5", "4")),
        (Order(level="5"), ("1.5", "4", "5")),
    ],
)
def test_levels_come_with_the_gate_that_guards_them(order, levels):
    assert order.levels == levels


def test_quick_reduces_and_says_so():
    full, quick = Order(), Order(quick=True)
    assert (full.num_requests, full.num_at_once, full.num_sequential, full.reductions) == (200, 8, 100, [])
    assert (quick.num_requests, quick.num_at_once) == (40, 4)
    assert any("40 requests" in line for line in quick.reductions) and len(quick.reductions) == 4
    assert [line.split(":")[0] for line in Order(quick=True, level="4").reductions] == ["benchmark"]


def test_stress_is_what_was_asked_for():
    order = Order(requests=1000, concurrency=64, sequential=500)
    assert (order.num_requests, order.num_at_once, order.num_sequential) == (1000, 64, 500)
    assert not order.reductions
    few = Order(requests=3, quick=True)
    assert (few.num_requests, few.num_at_once, few.num_sequential) == (3, 3, 20)


@pytest.mark.parametrize("quick", [False, True])
def test_stress_that_is_asked_to_be_less_is_said(quick):
    [line] = [one for one in Order(requests=10, quick=quick).reductions if one.startswith("stress")]
    assert line.startswith("stress: 10 requests at concurrency") and "instead of 200 requests" in line
    assert not Order(requests=10, mode="verify").reductions


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"requests": 0}, "--requests 0: must be a whole number from 1"),
        ({"concurrency": -1}, "--concurrency -1"),
        ({"sequential": "many"}, "--sequential many"),
        ({"requests": True}, "--requests True"),
        ({"concurrency": 300}, "only 200 requests"),
        ({"requests": 9999, "concurrency": 9999}, "512 at most"),
    ],
)
def test_impossible_stress_is_refused(fields, words):
    with pytest.raises(UserError, match=words):
        Order(**fields)


def test_order_of_an_earlier_version_has_the_usual_stress():
    content = {name: value for name, value in Order().as_dict().items() if name != "requests"}
    assert Order.parse(content).num_requests == 200


def test_order_is_the_same_after_json():
    order = Order(engine="vllm", flags=("--max-model-len", "512"), quick=True, path="marlin", requests=3)
    assert Order.parse(json.loads(json.dumps(order.as_dict()))) == order


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"mode": "none"}, "all, verify, stress, benchmark"),
        ({"level": "7"}, "1.5"),
        ({"url": "http://x", "flags": ("--a",)}, "runs already"),
    ],
)
def test_impossible_orders_are_refused_with_what_is_possible(fields, words):
    with pytest.raises(UserError, match=words):
        Order(**fields)


def test_secrets_among_the_flags_are_not_kept():
    kept = json.dumps(Order(flags=("--api-key", "sesame", "--hf-secret=open", "--tile", "auto")).as_dict())
    assert "sesame" not in kept and "open" not in kept and "auto" in kept


def test_secrets_in_a_command_are_not_kept_and_the_rest_is_to_the_letter():
    order = Order(engine="vllm serve {model} --port {port} --api-key sk-1")
    assert order.as_dict()["engine"] == order.shown_engine == "vllm serve {model} --port {port} --api-key (hidden)"
    plain = "vllm serve '{model}'  --port {port}"
    assert Order(engine=plain).as_dict()["engine"] == plain


def test_default_model_is_not_meant_of_a_server_that_runs_already():
    assert Order().names_model and Order(url="http://x", model="some/model").names_model
    assert not Order(url="http://x").names_model


def test_order_with_unknown_fields_is_refused():
    with pytest.raises(UserError, match="colour"):
        Order.parse({"mode": "all", "colour": "red"})


def test_values_of_the_engines_flags_are_found_however_they_are_written():
    order = Order(flags=("--require", "a=b", "--require=c=d", "--tile", "auto", "--no-sinks"))
    assert order.flag("require") == ["a=b", "c=d"] and order.flag("tile") == ["auto"] and order.flag("model") == []

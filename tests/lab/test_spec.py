"""The settings of a run."""

import json

import pytest

from firesteel.errors import UserError
from firesteel.lab.spec import LabSpec, identity, parse_spec


@pytest.mark.parametrize(
    ("spec", "numbers"),
    [
        (LabSpec(mode="verify"), ["1", "1.5", "2"]),
        (LabSpec(mode="benchmark"), ["1", "1.5", "4", "5", "6"]),
        (LabSpec(level="1"), ["1"]),
        (LabSpec(level="1.5"), ["1.5"]),
        (LabSpec(level="4", mode="verify"), ["1.5", "4"]),
        (LabSpec(level="5"), ["1.5", "4", "5"]),
    ],
)
def test_single_level_runs_with_those_it_needs(spec, numbers):
    assert [level.number for level in spec.levels] == numbers


def test_quick_reduces_and_says_so():
    full, quick = LabSpec(), LabSpec(quick=True)
    assert (tuple(full.stress), full.reductions) == ((200, 8, 100), [])
    assert quick.stress[:2] == (40, 4)
    assert any("40 requests" in line for line in quick.reductions) and len(quick.reductions) == 4
    assert [line.split(":")[0] for line in LabSpec(quick=True, level="4").reductions] == ["benchmark"]


def test_stress_has_the_requested_size():
    spec = LabSpec(requests=1000, concurrency=64, sequential=500)
    assert tuple(spec.stress) == (1000, 64, 500) and not spec.reductions
    assert tuple(LabSpec(requests=3, quick=True).stress) == (3, 3, 20)


@pytest.mark.parametrize("quick", [False, True])
def test_smaller_stress_than_usual_is_a_reduction(quick):
    [line] = [line for line in LabSpec(requests=10, quick=quick).reductions if line.startswith("stress")]
    assert line.startswith("stress: 10 requests at concurrency") and "instead of 200 requests" in line
    assert not LabSpec(requests=10, mode="verify").reductions


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"requests": 0}, "--requests 0: must be a whole number from 1"),
        ({"concurrency": -1}, "--concurrency -1"),
        ({"sequential": "many"}, "--sequential many"),
        ({"requests": True}, "--requests True"),
        ({"concurrency": 300}, "only 200 requests"),
        ({"requests": 9999, "concurrency": 9999}, "512 at most"),
        ({"runs": 0}, "runs = 0"),
        ({"pp": (0,)}, r"pp = \(0,\): must be numbers of at least 1"),
        ({"temperature": -1.0}, "temperature = -1.0: must be from 0 to 2"),
        ({"mode": "none"}, "all, verify, stress, benchmark"),
        ({"level": "7"}, "1.5"),
        ({"url": "http://x", "flags": ("--a",)}, "already runs"),
        ({"reference": "ref.json", "reference_url": "http://x"}, "leave one out"),
    ],
)
def test_impossible_settings_are_refused_with_what_is_possible(fields, words):
    with pytest.raises(UserError, match=words):
        LabSpec(**fields)


def test_workloads_of_the_benchmark_are_those_given():
    plan = LabSpec(pp=(64, 128), tg=(8,), depths=(0,), streams=(1,), runs=2, warmups=0, temperature=0.0).bench_plan
    assert (plan.pp, plan.tg, plan.depths, plan.concurrency) == ((64, 128), (8,), (0,), (1,))
    assert (plan.runs, plan.warmups, plan.temperature) == (2, 0, 0.0)
    assert LabSpec(quick=True).bench_plan.pp == (128, 512) and LabSpec().bench_plan.temperature is None


def test_fewer_workloads_than_usual_are_a_reduction():
    [line] = LabSpec(pp=(512,), level="4").reductions
    assert line.startswith("benchmark: prompts of 512, answers of 32 and 128, depths 0 and 4096")
    assert not LabSpec(runs=9, level="4").reductions


@pytest.mark.parametrize("given", [{"pp": (64,)}, {"warmups": 0}, {"temperature": 0.0}, {"runs": 5}], ids=str)
def test_given_workloads_have_their_own_baseline(given):
    assert identity(LabSpec(**given)) != identity(LabSpec())


def test_formats_do_not_change_what_is_measured():
    assert identity(LabSpec(formats="dense=q8_0")) == identity(LabSpec())


def test_settings_of_an_earlier_version_take_the_defaults():
    content = {name: value for name, value in LabSpec().as_dict().items() if name != "requests"}
    spec, unknown = parse_spec(content)
    assert spec.stress.requests == 200 and not unknown


def test_settings_are_the_same_after_json():
    spec = LabSpec(
        engine="vllm", flags=("--max-model-len", "512"), quick=True, path="marlin", requests=3, pp=(64, 128)
    )
    assert parse_spec(json.loads(json.dumps(spec.as_dict()))) == (spec, ())


def test_unknown_settings_are_named():
    assert parse_spec({"mode": "all", "colour": "red"}) == (LabSpec(), ("colour",))


def test_secrets_among_the_flags_are_not_kept():
    kept = json.dumps(LabSpec(flags=("--api-key", "sesame", "--hf-secret=open", "--tile", "auto")).as_dict())
    assert "sesame" not in kept and "open" not in kept and "auto" in kept


def test_secrets_in_a_command_are_hidden_and_the_rest_is_unchanged():
    spec = LabSpec(engine="vllm serve {model} --port {port} --api-key sk-1")
    assert spec.as_dict()["engine"] == spec.shown_engine == "vllm serve {model} --port {port} --api-key (hidden)"
    plain = "vllm serve '{model}'  --port {port}"
    assert LabSpec(engine=plain).as_dict()["engine"] == plain


def test_default_model_is_not_a_choice_if_the_server_runs_already():
    assert LabSpec().names_model and LabSpec(url="http://x", model="some/model").names_model
    assert not LabSpec(url="http://x").names_model


def test_values_of_the_engines_flags_are_found_in_both_notations():
    spec = LabSpec(flags=("--require", "a=b", "--require=c=d", "--tile", "auto", "--no-sinks"))
    assert spec.engine_flag("require") == ["a=b", "c=d"] and spec.engine_flag("tile") == ["auto"]
    assert spec.engine_flag("model") == []


def test_recorded_addresses_hide_their_secrets():
    spec = LabSpec(url="http://u:pw@h:1?api_key=k", reference_url="http://u:pw@r")
    content = spec.as_dict()
    assert (
        content["url"] == "http://(hidden)@h:1?api_key=(hidden)" and content["reference_url"] == "http://(hidden)@r"
    )
    assert "pw" not in str(identity(spec))

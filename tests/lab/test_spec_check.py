"""Settings that cannot be used are refused before anything runs."""

import json

import pytest

from firesteel.errors import UserError
from firesteel.lab.spec import LabSpec
from firesteel.lab.spec_check import check_spec


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"engine": "my-server"}, r"\{port\}"),
        ({"url": "ftp://x"}, "http://HOST:PORT"),
        ({"reference_url": "ftp://x"}, "http://HOST:PORT"),
        ({"reference": "/nowhere/ref.json"}, "/nowhere/ref.json"),
        ({"gates": ("kv_dytpe=auto,fp8",)}, "there is no gate 'kv_dytpe'"),
        ({"baseline": "/nowhere/result.json"}, "cannot read"),
        ({"engine": "x '{port}"}, "No closing quotation"),
        ({"url": "http://x:1", "gates": ("kv_dtype=auto,fp8",)}, "--gates: each cell needs its own server"),
        ({"engine": "vllm", "trace": "/nowhere/trace.json"}, "cannot read the profile"),
        ({"trace": "trace.json"}, "judged by its ledger"),
        ({"url": "http://x:1", "trace": "trace.json"}, "--engine says which engine it is"),
        ({"engine": "thing {port}", "trace": "trace.json"}, "no rules for thing"),
        ({"engine": "vllm", "path": "magic"}, "marlin, triton, cutlass"),
        ({"engine": "thing {port}", "path": "marlin"}, "no rules for thing"),
        ({"engine": "thing {port}", "expect": "moe=marlin"}, "--expect moe=marlin: there are no rules for thing"),
        ({"engine": "vllm", "expect": "moe=marlln"}, "moe=marlln can never be seen; values of moe are .*marlin"),
        ({"engine": "vllm", "expect": "experts=marlin"}, "must be SLOT=VALUE with a slot of moe"),
    ],
)
def test_impossible_setting_is_named(fields, words):
    with pytest.raises(UserError, match=words):
        check_spec(LabSpec(**fields))


def test_baseline_without_a_benchmark_is_refused(tmp_path):
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"levels": []}))
    with pytest.raises(UserError, match="no benchmark"):
        check_spec(LabSpec(baseline=str(path)))


def test_settings_of_other_levels_are_not_checked():
    check_spec(LabSpec(mode="verify", gates=("nonsense=1,2",), baseline="/nowhere"))
    check_spec(LabSpec(mode="stress", reference="/nowhere/ref.json"))
    check_spec(LabSpec())
    check_spec(LabSpec(engine="vllm", path="native-fp4", expect="dense=marlin,graphs=on"))

"""Orders that cannot be followed are refused before anything runs."""

import json

import pytest

from firesteel.errors import UserError
from firesteel.lab.spec import Order
from firesteel.lab.spec_check import check_order


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"engine": "my-server"}, r"\{port\}"),
        ({"url": "ftp://x"}, "http://HOST:PORT"),
        ({"reference_url": "ftp://x"}, "http://HOST:PORT"),
        ({"gates": ("kv_dytpe=auto,fp8",)}, "there is no gate 'kv_dytpe'"),
        ({"baseline": "/nowhere/result.json"}, "cannot read"),
        ({"engine": "x '{port}"}, "No closing quotation"),
        ({"url": "http://x:1", "gates": ("kv_dtype=auto,fp8",)}, "--gates: each cell needs a server of its own"),
        ({"engine": "vllm", "trace": "/nowhere/trace.json"}, "cannot read the profile"),
        ({"trace": "trace.json"}, "judged by its ledger"),
        ({"url": "http://x:1", "trace": "trace.json"}, "--engine says whose it is"),
        ({"engine": "thing {port}", "trace": "trace.json"}, "no rules for thing"),
        ({"engine": "vllm", "path": "magic"}, "marlin, triton, cutlass"),
        ({"engine": "thing {port}", "path": "marlin"}, "no rules for thing"),
    ],
)
def test_what_cannot_be_followed_is_named(fields, words):
    with pytest.raises(UserError, match=words):
        check_order(Order(**fields))


def test_baseline_without_a_benchmark_is_refused(tmp_path):
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"levels": []}))
    with pytest.raises(UserError, match="no benchmark"):
        check_order(Order(baseline=str(path)))


def test_what_is_not_asked_for_is_not_checked():
    check_order(Order(mode="verify", gates=("nonsense=1,2",), baseline="/nowhere"))
    check_order(Order())
    check_order(Order(engine="vllm", path="native-fp4"))

"""Plans of a sweep are read, and what they change is as before afterwards."""

import sys

import pytest

import sweep
from firesteel.kernels.decode_experts import plan_turns
from firesteel.kernels.decode_launch import machine_of

EXPERTS = "firesteel.kernels.decode_experts"
SIZES = {"hidden": 2880, "experts": 128, "active": 4}


def test_a_plan_names_implementations_and_constants():
    words = "decode_experts=cuda:turns,decode_experts.LAG=1,decode_attention.STAGES=3"
    pins, constants = sweep.read_plan(words)
    assert pins == ["decode_experts=cuda:turns"]
    assert constants == {(EXPERTS, "LAG"): 1, ("firesteel.kernels.decode_attention", "STAGES"): 3}
    assert sweep.read_plan("plain") == ([], {})


@pytest.mark.parametrize("word", ["decode_experts.LAGS=1", "no_such_module.LAG=1", "decode_experts.LAG=one"])
def test_a_plan_that_names_nothing_there_is_refused(word):
    with pytest.raises(SystemExit, match=rf"{word}: wants MODULE.CONSTANT=NUMBER"):
        sweep.read_plan(word)


def test_kernels_are_planned_anew_with_what_changed_and_only_inside():
    machine = machine_of((9, 0))
    shipped = plan_turns(machine, **SIZES)
    with pytest.raises(RuntimeError, match="broken"), sweep.changed({(EXPERTS, "LAG"): 1, (EXPERTS, "STAGES"): 5}):
        inside = plan_turns(machine, **SIZES)
        assert inside.kernel.source.defines["LAG"] == 1 and inside.stream.stages == 5
        raise RuntimeError("broken")
    assert plan_turns(machine, **SIZES) == shipped and sys.modules[EXPERTS].LAG == 3

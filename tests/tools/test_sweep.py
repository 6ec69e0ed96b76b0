"""Plans of a sweep are parsed, and their changes are undone afterwards."""

import sys

import pytest

import sweep
from firesteel.kernels.decode.experts_plan import plan_passed
from firesteel.kernels.stream.plan import machine_of

EXPERTS = "firesteel.kernels.decode.experts_plan"
SIZES = {"hidden": 2880, "experts": 128, "active": 4}


def test_plan_names_implementations_and_constants():
    words = "decode_experts=cuda:passed,decode.experts_plan.PASSED_FLIGHT=3,decode.attention_plan.STAGES=3"
    pins, constants = sweep.read_plan(words)
    assert pins == ["decode_experts=cuda:passed"]
    assert constants == {(EXPERTS, "PASSED_FLIGHT"): 3, ("firesteel.kernels.decode.attention_plan", "STAGES"): 3}
    assert sweep.read_plan("plain") == ([], {})


@pytest.mark.parametrize(
    "word", ["decode.experts_plan.NO_SUCH=1", "no_such_module.STAGES=2", "decode.experts_plan.PASSED_FLIGHT=one"]
)
def test_plan_with_an_unknown_name_is_refused(word):
    with pytest.raises(SystemExit, match=rf"{word}: must be MODULE.CONSTANT=NUMBER"):
        sweep.read_plan(word)


def test_kernels_are_planned_again_inside_the_context_only():
    machine = machine_of((9, 0))
    shipped = plan_passed(machine, **SIZES)
    constants = {(EXPERTS, "PASSED_FLIGHT"): 3, (EXPERTS, "PASSED_STAGES"): 5}
    with pytest.raises(RuntimeError, match="broken"), sweep.changed(constants):
        inside = plan_passed(machine, **SIZES)
        assert inside.kernel.source.defines["NUM_FLIGHT"] == 3 and inside.stream.stages == 5
        raise RuntimeError("broken")
    assert plan_passed(machine, **SIZES) == shipped and sys.modules[EXPERTS].PASSED_FLIGHT == 2

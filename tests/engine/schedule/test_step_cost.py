"""Expected step durations, and the number of prompt tokens that they allow beside decoding requests."""

import pytest

from firesteel.engine.schedule.step_cost import FIRST_TOKENS, LEAST_TOKENS, StepCostModel
from firesteel.model.prompt_sizes import TOKENS


def real(tokens):
    """Returns milliseconds as on a GPU: a constant for the experts' weights, plus a share per token."""
    return 8.0 + min(tokens, 100) * 0.12 + tokens * 0.02


def run(cost, times, num_decoding=8, of=real):
    """Returns the sizes of mixed steps that use all the room."""
    taken = []
    for _ in range(times):
        tokens = cost.find_room(num_decoding) + num_decoding
        padded = next((size for size in TOKENS if size >= tokens), tokens)
        taken.append(tokens)
        cost.add(tokens, of(padded))
    return taken


@pytest.mark.parametrize(
    ("budget", "sizes"), [(8192, (*TOKENS, 4096, 8192)), (100, (16, 32, 64, 96, 100)), (7, (7,))]
)
def test_sizes_are_those_of_prompt_steps_and_then_double(budget, sizes):
    assert tuple(StepCostModel(40.0, budget).sizes) == sizes


def test_a_piece_of_moderate_size_is_allowed_before_the_first_measurement():
    assert StepCostModel(40.0, 8192).find_room(20) == FIRST_TOKENS - 20


def test_room_fills_the_largest_size_that_stays_within_the_bound():
    cost = StepCostModel(40.0, 8192)
    taken = run(cost, 20)
    assert taken[0] == FIRST_TOKENS and taken[-1] == 768 and real(768) <= 40 < real(1024)
    assert all(real(tokens) <= 40 for tokens in taken[5:])


def test_long_prompts_alone_teach_what_is_too_long():
    cost = StepCostModel(40.0, 8192)
    cost.add(8192, 190.0)
    assert cost.find_room(8) == LEAST_TOKENS, "nothing shorter was seen"
    assert run(cost, 20)[-1] == 768


def test_prompts_progress_however_long_steps_take():
    cost = StepCostModel(1.0, 8192)
    assert set(run(cost, 10)[1:]) == {LEAST_TOKENS + 8}
    assert cost.find_room(5000) == LEAST_TOKENS


def test_longer_contexts_are_learnt_and_forgotten():
    cost = StepCostModel(40.0, 8192)
    run(cost, 20)
    slow = run(cost, 20, of=lambda tokens: 2 * real(tokens))
    assert 2 * real(slow[-1]) <= 40 < 2 * real(768)
    assert run(cost, 2000)[-1] == 768


def test_single_slow_step_does_not_rule_a_size_out_for_long():
    cost = StepCostModel(40.0, 8192)
    run(cost, 20)
    cost.add(768, 5000.0)
    assert run(cost, 400)[-1] == 768


def test_slow_first_steps_of_several_sizes_do_not_rule_them_out():
    """First steps of all sizes compiled kernels for seconds; pieces stayed at 128 tokens for 1,000 steps."""
    cost = StepCostModel(40.0, 8192)
    for size in TOKENS:
        cost.add(size, 3000.0)
    assert run(cost, 40)[-1] == 512
    assert run(cost, 400).count(768) > 200, "of the others, some were tries of the next larger size"


def test_slow_steps_of_all_small_sizes_do_not_hold_back_larger_ones():
    cost = StepCostModel(40.0, 8192)
    run(cost, 20)
    for size in (16, 32, 64):
        cost.add(size, 3000.0)
    assert cost.predict(16) <= real(768) and run(cost, 2)[-1] == 768


def test_time_between_measured_sizes_is_interpolated():
    cost = StepCostModel(40.0, 2048)
    cost.add(512, 20.0)
    assert cost.predict(16) == 20 and cost.predict(1024) == 30, "half of it is in proportion"
    cost.add(1536, 30.0)
    assert cost.predict(1024) == 25 and cost.predict(512) == 20 and cost.predict(1536) == 30

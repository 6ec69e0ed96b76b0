"""The target's states that heads read: by config, by the name of a published head, or by default."""

from pathlib import Path

import pytest

from firesteel.model.drafters.eagle3_states import PUBLISHED, TargetStates, find_published, find_states
from firesteel.model.drafters.errors import DrafterError

LAYERS = 36  # of gpt-oss-120b


def states_of(name, *, ids=None, uses_states=None, num_inputs=3):
    return find_states(ids, uses_states, find_published(Path("/heads") / name, None), num_inputs, LAYERS)


@pytest.mark.parametrize(
    ("name", "num_inputs", "boundaries", "is_final"),
    [
        ("gpt-oss-120b-Eagle3-v3", 3, (24, 30, 36), False),
        ("gpt-oss-120b-Eagle3-long-context", 3, (1, 17, 32), False),
        ("gpt-oss-120b-Eagle3-short-context", None, (36,), True),
        ("gpt-oss-120b-Eagle3-throughput", None, (36,), True),
        ("gpt-oss-120b-Eagle3", 3, (2, 18, 33), False),
        ("gpt-oss-120b-Eagle3-v2", 3, (2, 18, 33), False),
        ("EAGLE3-gpt-oss-120b-bf16", 3, (2, 18, 33), False),
    ],
)
def test_published_heads_with_a_silent_config(name, num_inputs, boundaries, is_final):
    assert states_of(name, num_inputs=num_inputs) == TargetStates(boundaries, is_final)


def test_config_goes_before_the_name():
    assert states_of("gpt-oss-120b-Eagle3-v3", ids=[2, 18, 33]) == TargetStates((2, 18, 33), False)


def test_heads_are_known_in_a_cache_by_repository_and_by_config(tmp_path):
    snapshot = tmp_path / "models--nvidia--gpt-oss-120b-Eagle3-v3" / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    link = tmp_path / "draft"
    link.symlink_to(snapshot)
    v3 = PUBLISHED["gpt-oss-120b-eagle3-v3"]
    assert find_published(snapshot, None) is v3 and find_published(link, None) is v3
    assert find_published(tmp_path, "nvidia/gpt-oss-120b-Eagle3-v3/") is v3
    assert find_published(tmp_path, None) is None
    assert PUBLISHED["gpt-oss-120b-eagle3-throughput"].most_tokens == 1


def test_one_input_without_ids_is_the_final_state():
    assert states_of("x", num_inputs=None) == states_of("x", num_inputs=1) == TargetStates((36,), True)
    assert states_of("x", ids=[36], num_inputs=1) == TargetStates((36,), False)
    assert states_of("x", ids=[], uses_states=False, num_inputs=None).is_final


@pytest.mark.parametrize(
    ("ids", "uses_states", "num_inputs", "message"),
    [
        ([1, 2], None, 3, "names 2 states of the target, but fc.weight reads 3 states"),
        ([1, 2, 3], None, None, "names 3 states of the target, but fc.weight is missing"),
        (None, None, 5, "fc.weight reads 5 states, but the config does not say which"),
        ([1, 2, 37], None, 3, "the target has 36 layers, so its states are 0 to 36"),
        ([-1, 2, 3], None, 3, "the target has 36 layers"),
        ([3, 2, 1], None, 3, "must be a list of rising layer numbers"),
        ([1, 1, 2], None, 3, "must be a list of rising layer numbers"),
        ([1.0, 2, 3], None, 3, "must be a list of rising layer numbers"),
        ("123", None, 3, "must be a list of rising layer numbers"),
        ([1, 2, 3], False, 3, "use_aux_hidden_state is false, so it is one, but fc.weight reads 3 states"),
    ],
)
def test_states_that_do_not_fit_are_refused(ids, uses_states, num_inputs, message):
    with pytest.raises(DrafterError, match=message):
        states_of("x", ids=ids, uses_states=uses_states, num_inputs=num_inputs)


def test_head_of_a_known_name_with_another_width_is_refused():
    with pytest.raises(DrafterError, match=r"reads the final state.* fc\.weight reads 3 states"):
        states_of("gpt-oss-120b-Eagle3-short-context", num_inputs=3)

"""Steps are counted although vLLM replays graphs without calling the model."""

from firesteel.vllm_plugin.step_log import FIRST_REPORT, StepLog


def test_a_step_that_the_model_did_not_compute_was_a_replay():
    steps = StepLog()
    steps.announce(4, is_decoding=True)
    assert steps.close("op by op")
    assert dict(steps.kinds) == {"decode graph of 4": 1}


def test_a_step_that_the_model_computed_is_counted_by_its_kind():
    steps = StepLog()
    steps.announce(1, is_decoding=False)
    steps.was_called = True
    assert steps.close("prompt graph of 32")
    assert dict(steps.kinds) == {"prompt graph of 32": 1}


def test_only_the_first_call_for_logits_counts_a_step():
    steps = StepLog()
    assert not steps.close("memory profile"), "no step was announced"
    steps.announce(2, is_decoding=True)
    assert steps.close("") and not steps.close("")
    assert steps.num_steps == 1


def test_report_is_logged_after_the_first_steps(caplog):
    steps = StepLog()
    with caplog.at_level("INFO", logger="vllm.firesteel"):
        for _ in range(FIRST_REPORT):
            steps.announce(1, is_decoding=True)
            steps.close("")
    assert caplog.messages == [f"firesteel: steps so far: {FIRST_REPORT} x decode graph of 1"]

"""Diagnoses of failed servers."""

import pytest

from firesteel.errors import UserError
from firesteel.hub import find_checkpoint
from firesteel.lab.servers.diagnosis import KINDS, LOG_PATTERNS, describe_end, diagnose_exit


def test_oom_killer_takes_precedence_over_the_log():
    diagnosis = diagnose_exit(
        -9, ["all is well"], step="load", kernel=["Out of memory: Killed process 12 (python)"]
    )
    assert diagnosis.kind == "out-of-memory" and "signal 9 (SIGKILL) at load" in diagnosis.words
    assert diagnosis.evidence == ("Out of memory: Killed process 12 (python)",)


def test_xid_of_the_driver_is_reported():
    diagnosis = diagnose_exit(1, [], step="request 3", kernel=["NVRM: Xid (PCI:0000:01:00): 31, pid=7, MMU Fault"])
    assert diagnosis.kind == "gpu-fault" and "Xid" in diagnosis.evidence[0]


def test_causes_take_precedence_over_consequences():
    log = ["CUDA error: an illegal memory access was encountered", "torch.OutOfMemoryError: CUDA out of memory"]
    assert diagnose_exit(1, log, step="x").kind == "illegal-memory-access"
    assert diagnose_exit(1, log[1:], step="x").kind == "gpu-out-of-memory"


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("ImportError: libcudart.so.12: cannot open shared object file", "import-error"),
        ("error: cannot listen on 127.0.0.1 port 8000: Address already in use", "port-in-use"),
        ("error loading model: failed to load model 'x.gguf'", "missing-model"),
        ("ggml: cudaMalloc failed: out of memory", "gpu-out-of-memory"),
        ("terminate called after throwing an instance of 'std::bad_alloc'", "out-of-memory"),
        ("CUDA error: unspecified launch failure", "illegal-memory-access"),
        ("Fatal Python error: Illegal instruction", "illegal-instruction"),
        ("RuntimeError: unable to write to file </torch_7>: No space left on device (28)", "disk-full"),
    ],
)
def test_log_lines_of_several_engines_are_recognised(line, kind):
    diagnosis = diagnose_exit(1, ["start", line, "end"], step="start-up")
    assert diagnosis.kind == kind and diagnosis.evidence == (line,) and diagnosis.cure


def test_our_error_for_a_missing_model_is_recognised():
    with pytest.raises(UserError) as caught:
        find_checkpoint("no/such-model")
    assert diagnose_exit(2, [f"error: {caught.value}"], step="start-up").kind == "missing-model"


def test_exit_without_a_known_cause_shows_the_last_lines():
    diagnosis = diagnose_exit(3, ["one", "", "two"], step="load")
    assert diagnosis.kind == "exit" and diagnosis.words == "it exited with code 3 at load"
    assert diagnosis.evidence == ("one", "two")


def test_signal_in_the_notation_of_a_shell_is_recognised():
    assert describe_end(139, "load") == "killed by signal 11 (SIGSEGV) at load"


def test_message_quotes_the_line_with_the_cause():
    log = ["Traceback", "ModuleNotFoundError: No module named 'sglang'", "bye"]
    diagnosis = diagnose_exit(1, log, step="start-up")
    assert "No module named 'sglang'" in diagnosis.in_words() and diagnosis.cure in diagnosis.in_words()


def test_hang_names_the_step():
    diagnosis = diagnose_exit(None, ["x"], step="4 requests at once", silent_s=30)
    assert (
        diagnosis.kind == "hang"
        and diagnosis.words == "it is running but hangs at 4 requests at once: no answer for 30 s"
    )


def test_every_pattern_has_a_known_kind():
    assert {pattern.kind for pattern in LOG_PATTERNS} <= set(KINDS)

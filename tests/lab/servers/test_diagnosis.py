"""Causes of death in words."""

import pytest

from firesteel.errors import UserError
from firesteel.hub import find_checkpoint
from firesteel.lab.servers.diagnosis import KINDS, SIGNS, describe_end, diagnose_exit


def test_kernel_that_killed_for_memory_is_the_cause_whatever_the_log_says():
    found = diagnose_exit(-9, ["all is well"], step="load", kernel=["Out of memory: Killed process 12 (python)"])
    assert found.kind == "out-of-memory" and "signal 9 (SIGKILL) at load" in found.words
    assert found.evidence == ("Out of memory: Killed process 12 (python)",)


def test_xid_of_the_driver_is_named():
    found = diagnose_exit(1, [], step="request 3", kernel=["NVRM: Xid (PCI:0000:01:00): 31, pid=7, MMU Fault"])
    assert found.kind == "gpu-fault" and "Xid" in found.evidence[0]


def test_cause_counts_before_what_follows_from_it():
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
def test_lines_of_several_engines_are_understood(line, kind):
    found = diagnose_exit(1, ["start", line, "end"], step="start-up")
    assert found.kind == kind and found.evidence == (line,) and found.cure


def test_our_own_word_for_a_missing_model_is_understood():
    with pytest.raises(UserError) as caught:
        find_checkpoint("no/such-model")
    assert diagnose_exit(2, [f"error: {caught.value}"], step="start-up").kind == "missing-model"


def test_end_without_a_sign_shows_the_last_lines():
    found = diagnose_exit(3, ["one", "", "two"], step="load")
    assert found.kind == "exit" and found.words == "it ended by itself with exit code 3 at load"
    assert found.evidence == ("one", "two")


def test_shells_way_to_tell_a_signal_is_understood():
    assert describe_end(139, "load") == "killed by signal 11 (SIGSEGV) at load"


def test_words_quote_the_line_that_names_the_cause():
    log = ["Traceback", "ModuleNotFoundError: No module named 'sglang'", "bye"]
    found = diagnose_exit(1, log, step="start-up")
    assert "No module named 'sglang'" in found.in_words() and found.cure in found.in_words()


def test_hang_names_the_step():
    found = diagnose_exit(None, ["x"], step="4 requests at once", silent_s=30)
    assert found.kind == "hang" and found.words == "it runs but hangs at 4 requests at once: no answer for 30 s"


def test_every_sign_is_a_kind():
    assert {sign.kind for sign in SIGNS} <= set(KINDS)

"""Diagnoses of failed servers."""

import pytest

from firesteel.errors import UserError
from firesteel.hub import find_checkpoint
from firesteel.lab.servers.diagnosis import KINDS, describe_end, diagnose_exit
from firesteel.lab.servers.known_errors import LOG_PATTERNS


def test_oom_killer_takes_precedence_over_the_log():
    kernel = ["Out of memory: Killed process 12 (python)"]
    diagnosis = diagnose_exit(-9, ["all is well"], step="load", kernel=kernel, processes={12: "python"})
    assert diagnosis.kind == "out-of-memory" and "signal 9 (SIGKILL) at load" in diagnosis.words
    assert diagnosis.evidence == tuple(kernel) and "according to the kernel" in diagnosis.words


def test_oom_killer_that_killed_another_process_is_not_blamed():
    """Any OOM line of the kernel's log was blamed."""
    kernel = ["Out of memory: Killed process 4242 (chrome) total-vm:9kB", "chrome invoked oom-killer: order=0"]
    assert diagnose_exit(1, [], step="load", kernel=kernel, processes={12: "python"}).kind == "exit"
    assert diagnose_exit(1, [], step="load", kernel=kernel).kind == "exit"


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
        ("ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'", "compiler-too-old"),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_121a'", "compiler-too-old"),
        ("RuntimeError: No supported CUDA architectures found for major versions [12].", "compiler-too-old"),
        ("RuntimeError: No supported CUDA architectures found for major versions [10].", "unsupported-gpu"),
        ("ERROR : Arch conditional MMA instruction used without targeting appropriate compute", "unsupported-gpu"),
        (
            "ptxas x.ptx, line 7; error: Feature '.tile::scatter4' not supported on .target 'sm_121'",
            "unsupported-gpu",
        ),
        ("ValueError: TRTLLM-gen MoE is only supported on SM100", "unsupported-gpu"),
        ("torch.AcceleratorError: CUDA error: no kernel image is available for execution", "no-kernel-image"),
        ("CUDA error: the provided PTX was compiled with an unsupported toolchain.", "driver-too-old"),
        (
            "RuntimeError: flashinfer-cubin version (0.6.4) does not match flashinfer version (0.6.3).",
            "flashinfer-version",
        ),
        ("ImportError: cannot import name 'mxfp8_quantize' from 'flashinfer'", "flashinfer-version"),
        (
            "ValueError: Free memory on device cuda:0 (2.6/121.63 GiB) on startup is less than desired GPU memory "
            "utilization (0.9, 109.5 GiB).",
            "memory-share",
        ),
        ("ValueError: No available memory for the cache blocks.", "cache-too-small"),
        ("NotImplementedError: No MXFP4 MoE backend supports the deployment configuration.", "no-backend"),
        ("HarmonyError: error downloading or loading vocab file: failed to download", "vocabulary"),
        ("HarmonyError: unexpected tokens remaining in message header: ['x']", "harmony-parser"),
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

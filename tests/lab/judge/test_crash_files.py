"""What ended a server, from its log or its bundle; a server that lived on was not ended by an error."""

import json

import pytest

from firesteel.errors import UserError
from firesteel.lab.judge.crash_files import diagnose_bundle, diagnose_end, find_processes, read_bundle
from tests.lab.path.evidence_lines import LOGS

KERNEL_IMAGE = "(EngineCore_DP0 pid=77) ERROR torch.AcceleratorError: CUDA error: no kernel image is available"
ANSWERED = 'INFO:     127.0.0.1:5 - "POST /v1/chat/completions HTTP/1.1" 200 OK'


def test_error_that_a_server_survived_did_not_end_it():
    assert diagnose_end(["start", KERNEL_IMAGE]).kind == "no-kernel-image"
    assert diagnose_end([ANSWERED, KERNEL_IMAGE]).kind == "no-kernel-image"
    assert diagnose_end([KERNEL_IMAGE, ANSWERED]) is None
    assert diagnose_end(["ImportError: No module named 'x'", "INFO: Application startup complete."]) is None


def test_error_that_loses_answers_counts_although_the_server_lives():
    log = ["HarmonyError: unexpected tokens remaining in message header: ['to']", ANSWERED]
    assert diagnose_end(log).kind == "harmony-parser"


def test_unknown_exception_counts_if_the_server_never_answered():
    log = ["ERROR Traceback (most recent call last):", "ERROR   File x", "ERROR engine.EngineStuckError: no"]
    diagnosis = diagnose_end(log)
    assert diagnosis.kind == "exit" and diagnosis.evidence == ("ERROR engine.EngineStuckError: no",)
    assert diagnose_end([ANSWERED, *log]) is None


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.log")), ids=lambda path: path.name)
def test_real_logs_of_healthy_servers_show_no_error(path):
    assert diagnose_end(path.read_text(encoding="utf-8").splitlines()) is None


def test_oom_killer_counts_only_for_the_processes_in_the_log():
    assert find_processes([KERNEL_IMAGE]) == {77: "EngineCore_DP0"}
    killed = "Out of memory: Killed process {} ({})"
    assert (
        diagnose_end(["(EngineCore_DP0 pid=77) INFO x", killed.format(77, "VLLM::EngineCor")]).kind
        == "out-of-memory"
    )
    assert diagnose_end(["(EngineCore_DP0 pid=77) INFO x", killed.format(4242, "chrome")]) is None
    assert diagnose_end([killed.format(4242, "chrome")]) is None


@pytest.fixture
def bundle(tmp_path):
    """bundle(log, **surroundings): a bundle that was read."""

    def make(*log, cause="it exited with code 1 at load", **surroundings):
        report = {"cause": cause, "surroundings": surroundings, "ledger": [{"op": "linear"}, "x"]}
        (tmp_path / "report.json").write_text(json.dumps(report))
        (tmp_path / "log.txt").write_text("\n".join(log))
        return read_bundle(tmp_path)

    return make


def test_bundle_is_diagnosed_by_its_log_and_its_kernel_messages(bundle):
    processes = [{"pid": 77, "name": "vllm"}]
    kernel = ["Out of memory: Killed process 77 (vllm)"]
    assert diagnose_bundle(bundle("x", processes=processes, kernel_messages=kernel)).kind == "out-of-memory"
    other = ["Out of memory: Killed process 4242 (chrome)"]
    assert diagnose_bundle(bundle("x", processes=processes, kernel_messages=other)).kind == "exit"
    assert diagnose_bundle(bundle(ANSWERED, KERNEL_IMAGE, ANSWERED)).kind == "no-kernel-image"


def test_bundle_without_a_known_error_says_what_it_said(bundle):
    stated = {"kind": "hang", "words": "it hangs", "cure": "look", "evidence": ["last"]}
    diagnosis = diagnose_bundle(bundle("x", diagnosis=stated))
    assert (diagnosis.kind, diagnosis.words, diagnosis.cure, diagnosis.evidence) == (
        "hang",
        "it hangs",
        "look",
        ("last",),
    )
    plain = diagnose_bundle(bundle("x", "y", cause="SIGKILL"))
    assert plain.words == "SIGKILL" and plain.evidence == ("x", "y")


def test_bundle_has_environment_and_ledger(bundle):
    read = bundle(environment={"VLLM_X": "1"}, kernel_messages=["k"])
    assert read.environment == {"VLLM_X": "1"} and read.ledger == ({"op": "linear"},)


@pytest.mark.parametrize("text", ["[]", "{}", "no"])
def test_other_reports_are_refused(tmp_path, text):
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(UserError, match=r"report\.json is not the report"):
        read_bundle(tmp_path)

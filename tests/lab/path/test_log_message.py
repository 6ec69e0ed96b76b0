"""The message of a log line, behind the prefixes of every engine."""

import pytest

from firesteel.lab.path.log_message import find_message


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "INFO ",
        "INFO:     ",
        "WARNING 11-18 12:00:00 [mxfp4.py:352] ",
        "(EngineCore_DP0 pid=172590) INFO 02-08 19:29:28 [mxfp4.py:311] ",
        "(VllmWorker-0 pid=32291) INFO 11-18 16:06:21 [worker_base.py:317] ",
        "(RayWorkerWrapper pid=77, ip=10.0.0.2) INFO 11-18 16:06:21 [worker.py:1] ",
        "(EngineCore_DP0 pid=7) 2026-02-08 19:31:28,848 - INFO - ",
        "[2026-11-18 12:00:00] ",
        "[2026-11-18 12:00:00 TP0] ",
        "2026-11-18T12:00:00.123456Z ",
        "vllm-1  | (APIServer pid=1) INFO 11-18 16:06:21 [model.py:733] ",
        "0.00.123.456 I ",
        "\x1b[32mINFO\x1b[0m 11-18 12:00:00 [cuda.py:345] ",
    ],
)
def test_prefixes_are_dropped(prefix):
    assert find_message(f"{prefix}Using 'MARLIN' Mxfp4 MoE backend.\n") == "Using 'MARLIN' Mxfp4 MoE backend."


@pytest.mark.parametrize(
    "line",
    ["[MXFP4] Using backend: CUTLASS", "load_tensors: offloaded 37/37 layers", "server_args=ServerArgs(x=1)"],
)
def test_message_that_looks_like_a_prefix_is_kept(line):
    assert find_message(line) == line


def test_words_of_a_prompt_are_not_a_message():
    assert not find_message("INFO Received request: Using 'MARLIN' Mxfp4 MoE backend.").startswith("Using")

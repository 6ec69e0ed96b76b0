"""llama-benchy, unmodified, measures Kindling behind `serve` and agrees with the speed in the server's log."""

import hashlib
import json
import os
import re
import statistics
import subprocess
import sys

import pytest

from firesteel.exam import TEXT, read_items
from firesteel.hub import BUILT_IN

BOOK = "https://book.invalid/book.txt"
TG = 32
pytestmark = pytest.mark.peer


@pytest.fixture(scope="module")
def benchy(start_serve, tmp_path_factory):
    """benchy(flags): its report, and the server's log lines of the same requests."""
    home = tmp_path_factory.mktemp("home")
    cache = home / ".cache" / "llama-benchy"
    cache.mkdir(parents=True)
    text = " ".join(item.text or "" for item in read_items(TEXT))
    (cache / f"{hashlib.md5(BOOK.encode()).hexdigest()}.txt").write_text(text * 20)
    with start_serve("--port", "0", directory=home) as started:

        def run(*flags):
            begin = len(started.log)
            report = home / "report.json"
            command = [
                sys.executable,
                "-m",
                "llama_benchy",
                "--base-url",
                f"{started.url}/v1",
                "--model",
                "kindling",
                "--tokenizer",
                str(BUILT_IN),
                "--book-url",
                BOOK,
                "--tg",
                str(TG),
                "--exact-tg",
                "--save-result",
                str(report),
                "--format",
                "json",
                "--exit-on-first-fail",
                *flags,
            ]
            environment = {**os.environ, "HOME": str(home), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment, timeout=900)
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout, json.loads(report.read_text()), lines_of(started.log[begin:])

        yield run


def lines_of(log):
    """Returns the log lines of requests that generated all their tokens; lines of the start may come late."""
    about = [line for line in log if "/v1/chat/completions" in line and "curl" not in line]
    lines = [dict(re.findall(r"(\w+)=(\S+)", line)) for line in about]
    assert all(line["status"] == "200" for line in lines)
    return [line for line in lines if int(line["output_tokens"]) == TG]


def test_it_runs_and_its_speed_is_the_servers(benchy):
    output, report, lines = benchy("--pp", "256", "--runs", "5", "--latency-mode", "generation", "--no-cache")
    assert "Coherence test PASSED" in output
    [row] = report["benchmarks"]
    assert row["pp_throughput"]["mean"] > 0 and row["response_size"] == TG
    measured = row["tg_throughput"]
    ours = statistics.median(1e3 / float(line["token_ms"]) for line in lines[-5:])
    spread = max(measured["values"]) - min(measured["values"])
    assert abs(measured["mean"] - ours) <= max(0.05 * ours, spread)
    assert all(line["cached_tokens"] == "0" for line in lines[-5:])  # --no-cache reached the engine


def test_prefix_caching_with_four_concurrent_requests(benchy):
    _, report, lines = benchy(
        "--pp", "128", "--depth", "256", "--runs", "2", "--concurrency", "1", "4", "--enable-prefix-caching"
    )
    rows = report["benchmarks"]
    assert {row["concurrency"] for row in rows} == {1, 4}
    assert {row["is_context_prefill_phase"] for row in rows} == {True, False}
    assert all(row["tg_throughput"]["mean"] > 0 for row in rows)
    assert max(int(line["cached_tokens"]) for line in lines) >= 192  # the context is found again

"""Unmodified llama-benchy and our benchmark measure the same server of known speed."""

import hashlib
import json
import os
import statistics
import subprocess
import sys

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from firesteel.hub import BUILT_IN
from firesteel.lab.bench.bench import measure
from firesteel.lab.bench.plan import BenchPlan
from firesteel.lab.client.prompts import WORDS
from firesteel.lab.servers.commands import make_command
from firesteel.lab.servers.supervisor import SupervisedServer, find_free_port
from tests.lab.mock import MODEL, mock_server

BOOK = "https://book.invalid/book.txt"
WITHIN = 0.03
pytestmark = pytest.mark.peer


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Rows of llama-benchy and of our benchmark, by (depth, concurrency)."""
    home = tmp_path_factory.mktemp("home")
    cache = home / ".cache" / "llama-benchy"
    cache.mkdir(parents=True)
    (cache / f"{hashlib.md5(BOOK.encode()).hexdigest()}.txt").write_text(" ".join(WORDS * 100))
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate([*WORDS, "?"])}, unk_token="?"))
    tokenizer.pre_tokenizer = WhitespaceSplit()  # a word is a token, as in the mock server
    tokenizer.save(str(home / "tokenizer.json"))
    with mock_server(pp_tok_s=500.0, tg_tok_s=50.0) as url:
        theirs = run_benchy(
            url,
            home,
            MODEL,
            home / "tokenizer.json",
            "--pp",
            "512",
            "--depth",
            "0",
            "256",
            "--concurrency",
            "1",
            "4",
            "--runs",
            "3",
        )
        plan = BenchPlan(pp=(512,), tg=(32,), depths=(0, 256), concurrency=(1, 4), cached_depths=(), runs=3)
        ours = measure(url, plan=plan)
    rows = {(row.workload.depth, row.workload.concurrency): row for row in ours.rows}
    return {(row["context_size"], row["concurrency"]): row for row in theirs}, rows


def run_benchy(url, home, model, tokenizer, *flags):
    report = home / "report.json"
    command = [
        sys.executable,
        "-m",
        "llama_benchy",
        "--base-url",
        f"{url}/v1",
        "--model",
        model,
        "--tokenizer",
        str(tokenizer),
        "--book-url",
        BOOK,
        "--tg",
        "32",
        "--exact-tg",
        "--save-result",
        str(report),
        "--format",
        "json",
        "--exit-on-first-fail",
        *flags,
    ]
    environment = {**os.environ, "HOME": str(home), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(report.read_text())["benchmarks"]


@pytest.mark.parametrize("cell", [(0, 1), (256, 1), (0, 4)])
@pytest.mark.parametrize("figure", ["pp", "tg"])
def test_both_measure_the_same_speed(both, cell, figure):
    theirs, ours = (rows[cell] for rows in both)
    assert ours.series[f"{figure}_tok_s"].mean == pytest.approx(theirs[f"{figure}_throughput"]["mean"], rel=WITHIN)


@pytest.mark.parametrize("cell", [(0, 1), (256, 1), (0, 4)])
def test_both_measure_the_same_time_to_the_first_token(both, cell):
    theirs, ours = (rows[cell] for rows in both)
    assert ours.series["ttft_ms"].mean == pytest.approx(theirs["e2e_ttft"]["mean"], rel=WITHIN)
    assert ours.series["ttfr_ms"].mean == pytest.approx(theirs["ttfr"]["mean"], rel=WITHIN)


def test_both_measure_the_same_for_kindling(tmp_path):
    """Within 5 %, or within the spread of both on a busy machine.

    Prompts are long compared with Harmony's own tokens, which llama-benchy does not count if they are more than a
    fifth of the rest, though the server computes them.
    """
    cache = tmp_path / ".cache" / "llama-benchy"
    cache.mkdir(parents=True)
    (cache / f"{hashlib.md5(BOOK.encode()).hexdigest()}.txt").write_text(" ".join(WORDS * 100))
    command = make_command(
        "firesteel", model="kindling", port=find_free_port(), folder=tmp_path, flags=("--device", "cpu")
    )
    with SupervisedServer(command, tmp_path):
        [theirs] = run_benchy(
            command.url,
            tmp_path,
            "kindling",
            BUILT_IN,
            "--pp",
            "512",
            "--runs",
            "6",
            "--no-cache",
        )
        plan = BenchPlan(pp=(512,), tg=(32,), depths=(0,), concurrency=(1,), cached_depths=(), runs=6)
        [ours] = measure(command.url, plan=plan).rows
    for figure in ("pp", "tg"):
        mine, other = ours.series[f"{figure}_tok_s"].values, theirs[f"{figure}_throughput"]["values"]
        spread = max(max(values) - min(values) for values in (mine, other))
        assert abs(statistics.median(mine) - statistics.median(other)) <= max(
            0.05 * statistics.median(other), spread
        )

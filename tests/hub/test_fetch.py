"""Fetching with the real huggingface_hub from a stand-in: whole, interrupted and resumed."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import huggingface_hub
import pytest

import firesteel
from firesteel.errors import UserError
from firesteel.hub import fetch as fetch_module
from firesteel.hub import find_checkpoint
from firesteel.hub.fetch import fetch, find_locks
from firesteel.hub.listing import list_remote
from firesteel.hub.plan import plan_pull
from tests.hub.conftest import REPOSITORY, SHARDS
from tests.hub.pulled import CUT, check_content, names_under, partial_of, pull
from tests.hub.stand_in import PIECE

PROGRAM = f"""
from firesteel.hub.fetch import fetch
from firesteel.hub.listing import list_remote
from firesteel.hub.plan import plan_pull
fetch(plan_pull(list_remote({REPOSITORY!r}, "main")), lambda done, total: print(done, flush=True))
"""


def test_needed_files_arrive_where_all_programs_find_them(hub, stored, cache):
    folder = pull()
    check_content(folder, stored)
    assert find_checkpoint("gpt-oss-20b") == folder
    for name in names_under(folder):
        found = huggingface_hub.hf_hub_download(REPOSITORY, name, local_files_only=True)
        assert os.path.realpath(found) == os.path.realpath(folder / name)
    assert not [name for name in names_under(cache) if name.endswith("incomplete")]


def test_each_byte_is_fetched_once_and_nothing_at_the_second_pull(hub, stored):
    pull()
    assert {asked.encoding for asked in hub.asked} == {"identity"}  # a compressed answer could not be resumed
    assert sum(asked.sent for asked in hub.asked) == plan_pull(list_remote(REPOSITORY, "main")).total_bytes
    hub.asked.clear()
    assert plan_pull(list_remote(REPOSITORY, "main")).is_complete
    pull()
    assert not hub.asked


def test_interrupted_pull_is_resumed_at_the_byte_where_it_ended(hub, stored, monkeypatch):
    monkeypatch.setattr(fetch_module, "STOP_S", 0.1)
    hub.stalls[SHARDS[0]] = CUT

    def interrupt(done, total):
        if partial_of(SHARDS[0]).exists() and done >= total - 200_000 + CUT - PIECE:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(interrupt)
    held = partial_of(SHARDS[0]).stat().st_size
    assert CUT - PIECE <= held <= CUT
    with pytest.raises(UserError, match="perhaps in part: `firesteel pull gpt-oss-20b` fetches what is missing"):
        find_checkpoint("gpt-oss-20b")
    hub.stalls.clear()
    hub.resume.set()
    check_content(pull(), stored)
    assert (held, 200_000 - held) in hub.fetched(SHARDS[0])
    assert {first for first, _ in hub.fetched(SHARDS[0])} <= {0, held}
    assert len(hub.fetched(SHARDS[1])) == len(hub.fetched("tokenizer.json")) == 1


def test_progress_begins_with_what_is_held_and_ends_with_the_whole(hub):
    partial = partial_of(SHARDS[0])
    partial.parent.mkdir(parents=True)
    partial.write_bytes(hub.repositories[REPOSITORY].files[SHARDS[0]][:CUT])
    reports = []
    pull(lambda done, total: reports.append((done, total)))
    total = plan_pull(list_remote(REPOSITORY, "main")).total_bytes
    assert reports[0][0] >= CUT and reports[-1] == (total, total)
    assert reports == sorted(reports)


def test_token_goes_to_the_hub_but_not_to_the_storage_it_redirects_to(hub, monkeypatch):
    hub.token = "hf_secret"
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    pull()
    tokens = {asked.name: asked.token for asked in hub.asked}
    assert tokens["config.json"] == "Bearer hf_secret" and tokens[SHARDS[0]] is None


def test_revision_is_recorded_beside_main(hub, stored):
    stored.revisions = ("main", "v1")
    folder = pull(revision="v1")
    with pytest.raises(UserError, match="only at v1, "):
        find_checkpoint("gpt-oss-20b")
    stored.files = {**stored.files, "config.json": b'{"changed": true}'}
    stored.commit, stored.revisions = "b" * 40, ("main",)
    hub.asked.clear()
    newer = pull()
    assert [asked.name for asked in hub.asked] == ["config.json"]  # the rest is the same
    assert find_checkpoint("gpt-oss-20b") == newer != folder


def test_name_means_the_older_snapshot_until_the_newer_one_is_complete(hub, stored):
    older = pull()
    stored.files = {**stored.files, SHARDS[1]: b"changed"}
    stored.altered[SHARDS[1]] = b"altered"
    stored.commit = "b" * 40
    with pytest.raises(UserError, match="checksum"):
        pull()
    assert find_checkpoint("gpt-oss-20b") == older
    stored.altered.clear()
    assert find_checkpoint("gpt-oss-20b") != pull() != older


def test_pull_of_a_commit_records_no_revision(hub, stored, cache):
    pull(revision=stored.commit)
    assert not (cache / "models--openai--gpt-oss-20b" / "refs").exists()


def test_file_that_another_program_is_fetching_is_waited_for(hub, stored):
    plan = plan_pull(list_remote(REPOSITORY, "main"))
    item = next(item for item in plan.items if item.file.name == SHARDS[0])
    find_locks(plan).mkdir(parents=True)
    item.blob.parent.mkdir(parents=True)
    lock = huggingface_hub.utils.WeakFileLock(find_locks(plan) / f"{item.file.digest}.lock")
    lock.__enter__()

    def finish():
        item.blob.write_bytes(stored.files[SHARDS[0]])
        lock.__exit__(None, None, None)

    timer = threading.Timer(0.2, finish)
    timer.start()
    reports = []
    check_content(fetch(plan, lambda done, total: reports.append((done, total))), stored)
    timer.join()
    assert hub.fetched(SHARDS[0]) == [] and reports[-1][0] == reports[-1][1]


def test_variables_of_the_hub_are_honoured_and_sigint_ends_a_stalled_download(hub, stored, tmp_path):
    hub.token, hub.stalls[SHARDS[0]] = "hf_secret", CUT
    variables = {"HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_secret", "HF_HOME": str(tmp_path / "home")}
    environment = {**os.environ, **variables, "PYTHONPATH": str(Path(firesteel.__file__).parents[1])}
    command = [sys.executable, "-W", "error", "-c", PROGRAM]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        for line in program.stdout:
            if int(line) > 0:
                program.send_signal(signal.SIGINT)
                break
        error = program.stderr.read().decode()
    assert program.returncode == -signal.SIGINT and error.strip().endswith("KeyboardInterrupt")
    root = tmp_path / "home" / "hub" / "models--openai--gpt-oss-20b"
    assert (root / "blobs").is_dir() and not (root / "refs").exists()
    assert hub.listed == [(f"api/models/{REPOSITORY}/revision/main", "Bearer hf_secret")]

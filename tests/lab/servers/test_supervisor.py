"""Servers that fail in every known way: each has a diagnosis and a bundle, and leaves no process behind."""

import errno
import json
import os
import socket
import threading
import time
from dataclasses import replace

import pytest

from firesteel.lab.servers import supervisor
from firesteel.lab.servers.server_exit import FOR_STACKS
from firesteel.lab.servers.supervisor import ServerFailed, SupervisedServer, is_free


def report_of(bundle):
    return json.loads((bundle / "report.json").read_text())


def fail(command, folder):
    with pytest.raises(ServerFailed) as caught, SupervisedServer(command, folder):
        pytest.fail("it became ready")
    return caught.value


def test_healthy_server_is_ready_inside_the_block_and_gone_after_it(fake, tmp_path, is_clean):
    command = fake()
    with SupervisedServer(command, tmp_path) as server:
        assert server.exit_code is None and 0 < server.startup_s < 20
        assert not is_free(command.address)
        server.check()
        assert server.processes.rss_bytes() > 1e6
    assert server.exit.is_clean and server.exit.how == "on SIGTERM" and server.exit.exit_code == 0
    assert is_clean(command) and is_free(command.address)
    assert "loading" in server.log.read_text() and not (tmp_path / "crashes").exists()
    assert server.stop() is server.exit


@pytest.mark.parametrize(
    "way",
    [
        "gpu-out-of-memory",
        "illegal-memory-access",
        "import-error",
        "port-in-use",
        "missing-model",
        "out-of-memory",
        "exit",
    ],
)
def test_exit_is_diagnosed_by_the_log(way, fake, tmp_path, is_clean):
    command = fake(way)
    error = fail(command, tmp_path)
    assert error.diagnosis.kind == way and "exited with code 1 at start-up" in error.diagnosis.words
    assert str(error.bundle) in str(error)
    report = report_of(error.bundle)
    assert report["surroundings"]["diagnosis"]["kind"] == way
    assert report["config"]["command"][-1] == way and report["surroundings"]["stopped"]["how"] == "by itself"
    assert "loading" in (error.bundle / "log.txt").read_text()
    assert is_clean(command)


def test_segfault_is_named_with_the_stack_in_the_log(fake, tmp_path, is_clean):
    command = fake("segfaults")
    error = fail(command, tmp_path)
    assert error.diagnosis.kind == "fault" and "signal 11 (SIGSEGV)" in error.diagnosis.words
    assert "in main" in (error.bundle / "log.txt").read_text()
    assert is_clean(command)


def test_server_that_never_becomes_ready_is_stopped_with_its_stacks(fake, tmp_path, is_clean):
    command = fake("never-ready", ready_s=1.0, grace_s=0.5)
    error = fail(command, tmp_path)
    assert error.diagnosis.kind == "never-ready" and "in 1 s" in error.diagnosis.words
    report = report_of(error.bundle)
    [process] = report["surroundings"]["processes"]
    assert process["rss_bytes"] > 1e6 and "fake_server.py" in process["command"]
    assert "in main" in (error.bundle / "log.txt").read_text() and "stacks" in error.diagnosis.cure
    assert is_clean(command)


def test_hang_names_the_step_and_stacks_are_in_the_log(fake, tmp_path, is_clean):
    command = fake("hangs", grace_s=0.5)
    with SupervisedServer(command, tmp_path) as server:
        server.step = "the first answer"
        error = server.fail_silent(7.0)
    assert (
        error.diagnosis.kind == "hang" and "hangs at the first answer: no answer for 7 s" in error.diagnosis.words
    )
    assert "in serve_forever" in (error.bundle / "log.txt").read_text() and "stacks" in error.diagnosis.cure
    assert server.exit.how == FOR_STACKS and server.exit.exit_code == -6
    assert is_clean(command) and is_free(command.address)


def test_hang_shows_the_stacks_of_every_process_and_ends_them_all(fake, tmp_path, is_clean):
    command = fake("leaves-orphan", grace_s=2.0)
    with SupervisedServer(command, tmp_path) as server:
        error = server.fail_silent(7.0)
    log = (error.bundle / "log.txt").read_text()
    assert 0 < log.index("in outlive") < log.index("in serve_forever")
    assert server.exit.orphans == () and is_clean(command)


def test_hanging_program_without_stacks_gets_sigterm(fake, tmp_path, is_clean):
    command = fake("hangs")
    command = replace(command, environment={"PYTHONFAULTHANDLER": ""})
    with SupervisedServer(command, tmp_path) as server:
        server.fail_silent(7.0)
    assert server.exit.how == "on SIGTERM" and server.exit.exit_code == 0 and is_clean(command)


def test_nvidia_smi_runs_before_the_server_is_stopped(fake, tmp_path, monkeypatch):
    """Later it would show a machine without the server."""
    seen = []
    with SupervisedServer(fake(), tmp_path) as server:
        monkeypatch.setattr(supervisor, "ask_nvidia_smi", lambda: seen.append(server.exit_code) or "12 GiB of 13")
        error = server.fail_silent(7.0)
    assert seen == [None] and report_of(error.bundle)["surroundings"]["nvidia_smi"] == "12 GiB of 13"


def test_full_disk_prevents_the_bundle_but_not_the_diagnosis(fake, tmp_path, monkeypatch, is_clean):
    def fill(folder, evidence):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))

    monkeypatch.setattr(supervisor, "write_crash_bundle", fill)
    command = fake("disk-full")
    error = fail(command, tmp_path)
    assert error.diagnosis.kind == "disk-full" and error.bundle is None
    assert f"no crash bundle: {tmp_path / 'crashes'} cannot be written: No space left on device" in str(error)
    assert is_clean(command)


def test_server_that_ignores_sigterm_is_aborted_with_its_stacks(fake, tmp_path, is_clean):
    command = fake("ignores-sigterm", grace_s=0.5)
    with SupervisedServer(command, tmp_path) as server:
        pass
    assert server.exit.how == "on SIGABRT" and not server.exit.is_clean
    assert server.exit.exit_code == -6 and "serve_forever" in server.log.read_text()
    assert is_clean(command)


def test_interrupted_start_leaves_no_server(fake, tmp_path, is_clean, monkeypatch):
    def interrupt(self):
        raise SystemExit(143)

    command = fake("well")
    monkeypatch.setattr(SupervisedServer, "_is_ready", interrupt)
    with pytest.raises(SystemExit), SupervisedServer(command, tmp_path):
        pass
    assert is_clean(command)


def test_zombies_are_seen_while_the_server_runs_and_reaped_later(fake, tmp_path, is_clean):
    command = fake("makes-zombie")
    with SupervisedServer(command, tmp_path) as server:
        [zombie] = server.processes.find_zombies()
        server.monitor.sample()
        assert zombie.status == "zombie" and zombie.pid in server.monitor.zombies
    assert is_clean(command)


def test_orphan_that_left_the_session_is_found_and_killed(fake, tmp_path, is_clean):
    command = fake("leaves-orphan", grace_s=2.0)
    with SupervisedServer(command, tmp_path) as server:
        assert len(server.processes.describe_all()) == 2
    [orphan] = server.exit.orphans
    assert not server.exit.is_clean and "left" in server.exit.in_words()
    assert orphan.in_words() in server.exit.in_words()
    assert is_clean(command)


def test_flooded_log_kills_the_server_and_keeps_both_ends(fake, tmp_path, is_clean):
    command = fake("floods", max_log_bytes=64 << 20)
    error = fail(command, tmp_path)
    assert error.diagnosis.kind == "log-flood" and "the limit is 67 MB" in error.diagnosis.words
    log = tmp_path / "fake.log"
    assert log.stat().st_size < 3 << 20 and log.read_bytes().startswith(b"loading\n")
    assert b"bytes left out" in log.read_bytes()
    assert is_clean(command)


def test_used_port_is_reported_before_anything_starts(fake, tmp_path):
    command = fake()
    with (
        socket.create_server(command.address),
        pytest.raises(ServerFailed, match="is used by another process") as caught,
    ):
        SupervisedServer(command, tmp_path)
    assert caught.value.diagnosis.kind == "port-in-use" and not (tmp_path / "fake.log").exists()


def test_missing_program_is_named(fake, tmp_path):
    with pytest.raises(ServerFailed, match="no-such-program cannot be started: No such file"):
        SupervisedServer(fake(words=["no-such-program"]), tmp_path)


def test_server_that_is_killed_later_is_diagnosed(fake, tmp_path, is_clean):
    command = fake()
    with SupervisedServer(command, tmp_path) as server:
        server.step = "request 12"
        server.ledger = [{"op": "linear", "calls": 3}]
        os.kill(server.processes.leader, 9)
        deadline = time.monotonic() + 5
        with pytest.raises(ServerFailed) as caught:
            while time.monotonic() < deadline:
                server.check()
                time.sleep(0.01)
    assert "killed by signal 9 (SIGKILL) at request 12" in caught.value.diagnosis.words
    assert report_of(caught.value.bundle)["ledger"] == [{"op": "linear", "calls": 3}]
    assert is_clean(command)


def test_bundle_has_no_secrets_of_the_environment(fake, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    monkeypatch.setenv("VLLM_API_KEY", "hunter3")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    bundle = fail(fake("exit"), tmp_path).bundle
    environment = report_of(bundle)["surroundings"]["environment"]
    assert environment["OMP_NUM_THREADS"] == "1" and "HF_TOKEN" not in environment
    assert not any("hunter" in path.read_text() for path in bundle.iterdir())


def test_diagnosis_has_no_secrets_of_the_log(fake, tmp_path):
    command = fake("tells-its-flags")
    command = replace(command, words=(*command.words, "--api-key", "hunter2"))
    error = fail(command, tmp_path)
    assert "flags: ['--api-key', '(hidden)']" in error.diagnosis.evidence and "hunter2" not in str(error)


def test_monitor_leaves_no_thread(fake, tmp_path):
    with SupervisedServer(fake(), tmp_path):
        assert any(thread.name == "server-monitor" for thread in threading.enumerate())
    assert not any(thread.name == "server-monitor" for thread in threading.enumerate())

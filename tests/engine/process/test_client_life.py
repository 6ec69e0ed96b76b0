"""The life of an engine process: killed, hung, failing, closed or orphaned, without leftovers."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from firesteel.engine.process import handle
from firesteel.engine.process.client import EngineClient
from firesteel.engine.process.messages import Submit
from firesteel.errors import EngineDied, EngineFailed, UserError
from firesteel.types import Request, SamplingParams

LONG = 150  # tokens: long enough that something can happen meanwhile
PARENT = """
import asyncio, pathlib, signal, sys
from firesteel.config import resolve
from firesteel.engine.process.client import EngineClient
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
async def main():
    config = resolve({"device": "cpu", "kv_cache_gib": 0.002}).config
    client = await EngineClient.start(pathlib.Path(sys.argv[1]), config)
    print(client.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
HANGING = """
import sys, time
from firesteel.engine.process.main import main
from firesteel.engine.step.runner import Runner
run = Runner.run
def run_or_hang(self, batch, taps):
    return run(self, batch, taps) if batch.token_ids[0] != 13 else time.sleep(60)
Runner.run = run_or_hang
main(int(sys.argv[1]))
"""


def request(name, token_ids=(5, 6, 7), max_tokens=14):
    return Request(request_id=str(name), token_ids=token_ids, params=SamplingParams(max_tokens=max_tokens))


async def ask(client, *asked, **more):
    """Returns the tokens of a request."""
    return [token async for output in client.generate(request(*asked, **more)) for token in output.token_ids]


def is_gone(pid):
    """Returns whether neither a process nor a zombie is left."""
    return not Path(f"/proc/{pid}").exists()


async def kill_during_a_batch(client, number):
    """Returns the errors of eight requests, and the seconds from the signal to the last of them."""
    batch = [asyncio.create_task(ask(client, i, [i + 1] * 9 * i or [7], LONG)) for i in range(8)]
    while (await client.statistics()).step_requests < 40:
        await asyncio.sleep(0.01)
    start = time.monotonic()
    os.kill(client.pid, number)
    errors = await asyncio.gather(*batch, return_exceptions=True)
    return errors, time.monotonic() - start


@pytest.mark.usefixtures("none_left")
def test_killed_engine_fails_requests_in_flight_and_is_restarted_up_to_the_limit(run, checkpoint, configure):
    config = configure(engine_restarts=1)

    async def live():
        client = await EngineClient.start(checkpoint, config)
        first, expected = client.pid, await ask(client, "first")
        errors, seconds = await kill_during_a_batch(client, signal.SIGKILL)
        assert seconds < 5 and {type(error) for error in errors} == {EngineDied}
        assert is_gone(first) and not client.is_ready and client.failure is None
        check_bundle(errors[0], "SIGKILL, killed from outside")
        assert await ask(client, "again") == expected  # waits for the restart
        assert client.is_ready and client.pid != first and client.num_deaths == 1

        errors, seconds = await kill_during_a_batch(client, signal.SIGSEGV)
        assert seconds < 5 and "SIGSEGV" in str(errors[0]) and errors[0].bundle is not None
        assert {type(error) for error in errors} == {EngineFailed}, "there is no engine to try again"
        assert "Fatal Python error: Segmentation fault" in (errors[0].bundle / "log.txt").read_text()
        for late in (ask(client, "late"), client.statistics()):
            with pytest.raises(EngineDied, match="1 restarts within 600 s is the limit") as caught:
                await late
            assert "SIGSEGV" in str(caught.value) and caught.value.bundle == errors[0].bundle
        assert client.failure is not None and not client.is_ready and client.num_deaths == 2
        await client.close()

    run(live())
    assert len(os.listdir(config.process.crash_dir)) == 2


def check_bundle(error, cause):
    assert f"the engine died: {cause}" in str(error) and str(error).endswith(f"crash bundle: {error.bundle}")
    report = json.loads((error.bundle / "report.json").read_text())
    assert cause in report["cause"] and report["config"]["process"]["engine_restarts"] == 1
    assert report["engine"]["max_num_seqs"] > 0 and report["engine"]["device"] == "CPU" and report["command"]
    assert report["in_flight"] == [str(number) for number in range(8)]
    assert [span["request"] for span in report["last_plan"]] == report["in_flight"]
    assert {span["num_tokens"] for span in report["last_plan"]} == {1}
    assert {"op": "linear", "implementation": "reference"}.items() <= report["ledger"][1].items()
    assert report["surroundings"]["device"] == "CPU" and report["surroundings"]["versions"]["torch"]
    assert (error.bundle / "log.txt").exists()


@pytest.mark.usefixtures("none_left")
def test_exception_is_named_and_a_restart_that_fails_says_why(run, checkpoint, configure, tmp_path):
    folder = shutil.copytree(checkpoint, tmp_path / "model")
    config = configure(engine_restarts=1)

    async def live():
        client = await EngineClient.start(folder, config)
        shutil.rmtree(folder)
        waiting = asyncio.create_task(ask(client, "long", max_tokens=LONG))
        await asyncio.sleep(0)
        for name in ("one", "two"):  # with the same number: the engine fails at the second
            client._process.send(Submit.of(request(name), 999))
        with pytest.raises(EngineDied, match="the engine died: KeyError: ") as caught:
            await waiting
        assert "KeyError" in (caught.value.bundle / "log.txt").read_text()
        with pytest.raises(EngineDied, match=r"1 restarts within 600 s is the limit .*model.*config\.json"):
            await ask(client, "late")
        await client.close()

    run(live())


@pytest.mark.usefixtures("none_left")
def test_engine_that_hangs_is_killed_and_another_started(run, checkpoint, configure, monkeypatch):
    """The engine is idle for longer than the limit, then a request hangs and another waits behind it."""
    monkeypatch.setattr(handle, "PROGRAM", ("-c", HANGING))
    monkeypatch.setattr(handle, "LOAD_PATIENCE", 60)

    async def live():
        client = await EngineClient.start(checkpoint, configure(engine_hang_s=1.0))
        await asyncio.sleep(1.5)
        assert len(await ask(client, "good", max_tokens=3)) == 3
        start = time.monotonic()
        hanging = asyncio.create_task(ask(client, "bad", [13, 1]))
        await asyncio.sleep(0.5)
        errors = await asyncio.gather(hanging, ask(client, "behind"), return_exceptions=True)
        assert 1.0 < time.monotonic() - start < 5.0
        for error in errors:
            assert isinstance(error, EngineDied)
            assert "it hung: no message for 1 s (engine_hang_s) at the plan of 2 from token 0 of bad" in str(error)
        assert "run_or_hang" in (errors[0].bundle / "log.txt").read_text(), "where it hung"
        assert len(await ask(client, "next", max_tokens=3)) == 3
        assert client.num_deaths == 1
        await client.close()

    run(live())


def test_bundle_that_cannot_be_written_does_not_hide_the_death(run, configure, tmp_path):
    class Process:
        log_tail = ledger = last_plan = surroundings = ()

    async def report():
        client = EngineClient(tmp_path, configure(crash_dir=str(tmp_path / "file")))
        client._process = Process()
        return client._report("the engine died: SIGTERM")

    (tmp_path / "file").write_text("")
    error = run(report())
    assert "the engine died: SIGTERM; no crash bundle could be written: " in str(error) and error.bundle is None


@pytest.mark.usefixtures("none_left")
def test_bad_model_is_the_users_error_and_leaves_no_process(run, configure, tmp_path):
    with pytest.raises(UserError, match=r"config\.json") as caught:
        run(EngineClient.start(tmp_path, configure()))
    assert not isinstance(caught.value, EngineDied)


@pytest.mark.usefixtures("none_left")
def test_close_ends_requests_and_process_and_may_be_called_twice(run, checkpoint, configure):
    config = configure(prepare=True, max_num_seqs=2)

    async def live():
        seen, captured = [], []
        client = await EngineClient.start(
            checkpoint,
            config,
            progress=lambda done, total: seen.append((done, total)),
            preparing=lambda done, total: captured.append((done, total)),
        )
        assert seen[-1][0] == seen[-1][1] > 0 and client.facts.vocab_size == 272
        assert captured == [(1, 2), (2, 2)] and (await client.statistics()).graphs == 2
        long = asyncio.create_task(ask(client, "long", max_tokens=LONG))
        while (await client.statistics()).requests_running == 0:
            pass
        await client.close()
        assert is_gone(client.pid) and client.num_deaths == 0
        assert client._process.log_tail == [], "nothing is printed at the exit"
        await client.close()
        for ended in (long, ask(client, "late")):
            with pytest.raises(EngineDied, match="the engine was shut down"):
                await ended

    run(live())
    assert os.listdir(config.process.crash_dir) == []


@pytest.mark.usefixtures("none_left")
def test_start_that_is_cancelled_leaves_no_process(run, checkpoint, configure, children):
    async def cancel():
        before = children()
        starting = asyncio.create_task(EngineClient.start(checkpoint, configure()))
        await asyncio.sleep(0.3)
        assert len(children() - before) == 1
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    run(cancel())


@pytest.mark.parametrize(
    ("number", "is_stopped"),
    [(signal.SIGKILL, False), (signal.SIGKILL, True), (signal.SIGINT, False)],
    ids=["killed", "killed while the engine is stopped", "interrupted"],
)
def test_engine_ends_with_its_parent(checkpoint, number, is_stopped):
    """The parent does not call close, and a stopped engine cannot notice the closed socket."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", PARENT, str(checkpoint)], **pipes) as parent:
        engine = int(parent.stdout.readline())
        assert not has_ended(engine)
        if is_stopped:
            os.kill(engine, signal.SIGSTOP)
        parent.send_signal(number)
        errors = parent.stderr.read()
    assert "Warning" not in errors and "EngineDied" not in errors
    deadline = time.monotonic() + 5
    while not has_ended(engine) and time.monotonic() < deadline:
        time.sleep(0.02)
    if not has_ended(engine):
        os.kill(engine, signal.SIGKILL)
        pytest.fail("the engine outlived its parent")
    assert is_gone(engine) or number == signal.SIGKILL


def has_ended(pid):
    """Returns whether it exited; its new parent may not have reaped it yet."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"

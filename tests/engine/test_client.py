"""The engine in a process of its own: the same tokens, and what is left when it dies."""

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import aclosing
from pathlib import Path

import pytest

from firesteel.config import resolve
from firesteel.engine import child
from firesteel.engine.client import EngineClient
from firesteel.engine.engine import Engine
from firesteel.engine.messages import Submit
from firesteel.errors import EngineDied, RequestError, UserError
from firesteel.hub import find_checkpoint
from firesteel.types import Request, SamplingParams

RNG = random.Random(5)
PROMPTS = [[RNG.randrange(256) for _ in range(length)] for length in (1, 7, 16, 33, 60, 90)]
LONG = 150  # tokens: long enough that something can happen meanwhile
PARENT = """
import asyncio, pathlib, signal, sys
from firesteel.config import resolve
from firesteel.engine import child
from firesteel.engine.client import EngineClient
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
from firesteel.engine import process
from firesteel.engine.runner import Runner
run = Runner.run
def run_or_hang(self, batch):
    return run(self, batch) if batch.token_ids[0] != 13 else time.sleep(60)
Runner.run = run_or_hang
process.main(int(sys.argv[1]))
"""


def request(name, token_ids=PROMPTS[3], max_tokens=14, **params):
    return Request(
        request_id=str(name), token_ids=token_ids, params=SamplingParams(max_tokens=max_tokens, **params)
    )


async def collect(client, one):
    return [output async for output in client.generate(one)]


def tokens(outputs):
    return [token for output in outputs for token in output.token_ids]


def is_gone(pid):
    """No process and no zombie."""
    return not Path(f"/proc/{pid}").exists()


def children():
    """Processes that this one started and has not buried."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


@pytest.fixture
def none_left():
    """As many processes after the test as before it."""
    before = children()
    yield
    assert children() == before


@pytest.fixture(scope="module", autouse=True)
def one_thread_a_child():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def run():
    """Runs coroutines, all on one loop."""
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture(scope="module")
def configure(tmp_path_factory):
    def make(**knobs):
        folder = tmp_path_factory.mktemp("crashes")
        return resolve(
            {
                "device": "cpu", "memory_reserve_gib": 0.0, "page_size": 4, "kv_cache_gib": 0.002,
                "prefix_caching": False, "crash_dir": str(folder), **knobs,
            }
        ).config  # fmt: skip

    return make


@pytest.fixture(scope="module")
def shared(run, checkpoint, configure):
    """For tests that leave it as it was."""
    client = run(EngineClient.start(checkpoint, configure()))
    yield client
    assert client.num_deaths == 0
    run(client.close())


@pytest.fixture(scope="module")
def alone(llm, configure):
    """Outputs of an engine in this process, by request."""

    def outputs(*requests):
        config = configure()
        engine = Engine(llm.model, llm.device, config.batch, config.cache, max_context=llm.max_context)
        made = {one.request_id: [] for one in requests}
        for one in requests:
            engine.submit(one)
        while engine.has_work:
            for output in engine.step():
                made[output.request_id].append(output)
        return made

    return outputs


def test_outputs_equal_those_in_process(run, shared, alone):
    requests = [request(i, prompt) for i, prompt in enumerate(PROMPTS)]
    requests += [
        request("drawn", PROMPTS[2], temperature=1.0, seed=2**64 - 1, top_p=0.9, logit_bias={5: 2.0}),
        request("chosen", PROMPTS[2], temperature=1.0, allowed_token_ids=(7, 8, 9)),
        request("scored", PROMPTS[1], logprobs=2, prompt_logprobs=1),
    ]

    async def together():
        return await asyncio.gather(*(collect(shared, one) for one in requests))

    expected = alone(*requests)
    for one, outputs in zip(requests, run(together()), strict=True):
        mine = expected[one.request_id]
        for field in ("request_id", "token_ids", "finish_reason", "num_cached", "error"):
            assert [getattr(output, field) for output in outputs] == [getattr(output, field) for output in mine]
        assert [output.statistics is None for output in outputs] == [True] * (len(outputs) - 1) + [False]
        assert outputs[-1].statistics.output_tokens == 14
    assert set(tokens(expected["chosen"])) == {7, 8, 9}
    scored, mine = run(collect(shared, requests[-1])), expected["scored"]
    assert [output.logprobs.token_id for output in scored] == tokens(mine)
    assert scored[0].prompt_logprobs[0].top[0][0] == mine[0].prompt_logprobs[0].top[0][0]
    assert scored[3].logprobs.logprob == pytest.approx(mine[3].logprobs.logprob, abs=1e-4)


def test_64_requests_of_mixed_length_finish_and_leave_nothing(run, shared, alone):
    rng = random.Random(2)
    many = [request(i, PROMPTS[i % 6], max_tokens=rng.randrange(1, 15)) for i in range(64)]

    async def together():
        before = await shared.statistics()
        made = await asyncio.gather(*(collect(shared, one) for one in many))
        return before, made, await shared.statistics()

    before, made, after = run(together())
    expected = alone(*(request(i, prompt) for i, prompt in enumerate(PROMPTS)))
    for one, outputs in zip(many, made, strict=True):
        assert tokens(outputs) == tokens(expected[str(int(one.request_id) % 6)])[: one.params.max_tokens]
    assert after.requests_finished - before.requests_finished == 64
    assert after.output_tokens - before.output_tokens == sum(one.params.max_tokens for one in many)
    assert (after.pages_held, after.requests_running, after.requests_waiting) == (0, 0, 0)
    assert after.run_s > before.run_s and after.largest_step_requests > 8


@pytest.mark.slow
def test_64_requests_of_mixed_length_finish_on_kindling(run, configure):
    rng = random.Random(3)
    many = [
        request(i, [rng.randrange(4000) for _ in range(rng.randrange(1, 300))], rng.randrange(1, 60))
        for i in range(64)
    ]

    async def live():
        client = await EngineClient.start(find_checkpoint("kindling"), configure(page_size=64, kv_cache_gib=0.5))
        made = await asyncio.gather(*(collect(client, one) for one in many))
        held = (await client.statistics()).pages_held
        await client.close()
        return made, held

    made, held = run(live())
    assert [len(tokens(outputs)) for outputs in made] == [one.params.max_tokens for one in many] and held == 0


def test_closed_generator_ends_its_request_and_frees_its_pages(run, shared):
    async def leave():
        before = await shared.statistics()
        async with aclosing(shared.generate(request("left", max_tokens=LONG))) as outputs:
            await anext(outputs)
            held = (await shared.statistics()).pages_held
        return before, held, await shared.statistics()

    before, held, after = run(leave())
    assert held > 5 and after.pages_held == 0
    assert after.requests_cancelled - before.requests_cancelled == 1


def test_cancel_ends_the_outputs_and_the_name_is_free_again(run, shared, alone):
    async def cancel():
        long = asyncio.create_task(collect(shared, request("name", PROMPTS[4], max_tokens=LONG)))
        while (await shared.statistics()).requests_running == 0:
            pass
        assert shared.cancel("name") and not shared.cancel("other")
        again = asyncio.create_task(collect(shared, request("name", PROMPTS[1])))
        return await long, await again, await shared.statistics()

    long, again, after = run(cancel())
    assert len(long) < LONG and all(output.finish_reason is None for output in long)
    assert tokens(again) == tokens(alone(request("name", PROMPTS[1]))["name"])
    assert after.pages_held == 0


def test_reader_that_finds_the_end_itself_gets_statistics(run, shared):
    async def finish():
        before = (await shared.statistics()).requests_finished
        outputs = []
        async for output in shared.generate(request("text", max_tokens=LONG)):
            outputs.append(output)
            if len(outputs) == 3:
                assert shared.finish("text")
        return outputs, (await shared.statistics()).requests_finished - before

    outputs, finished = run(finish())
    assert outputs[-1].finish_reason == "stop" and finished == 1
    assert 3 <= outputs[-1].statistics.output_tokens < LONG and not shared.finish("text")


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (request("long", [1] * 250), "request long: 250 prompt tokens and 14 to come exceed the context of 256"),
        (request("odd", [1, 272]), "request odd: token id 272 is outside the vocabulary of 272"),
        (request("odd", [-1]), "request odd: token id -1 is outside"),
        (request("bias", [1], logit_bias={300: 1.0}), "logit_bias: token id 300 is outside the vocabulary"),
        (
            Request(request_id="s", token_ids=[1], params=SamplingParams(), score=True),
            "request s: a score cannot cross to the engine's process: use SamplingParams.prompt_logprobs or LLM",
        ),
        (
            Request(request_id="m", token_ids=[1], params=SamplingParams(), mask=object()),
            r"request m: a mask cannot cross to the engine's process: use SamplingParams\.allowed_token_ids",
        ),
        (request("only", [1], allowed_token_ids=(272,)), "allowed_token_ids: token id 272 is outside"),
    ],
)
def test_request_that_cannot_run_is_refused_and_the_engine_lives_on(run, shared, one, message):
    with pytest.raises(UserError, match=message):
        run(collect(shared, one))
    assert len(tokens(run(collect(shared, request("next", max_tokens=2))))) == 2


async def kill_during_a_batch(client, number):
    """Errors of eight requests, and the seconds from the signal to the last of them."""
    batch = [asyncio.create_task(collect(client, request(i, PROMPTS[i % 6], max_tokens=LONG))) for i in range(8)]
    while (await client.statistics()).step_requests < 40:
        await asyncio.sleep(0.01)
    start = time.monotonic()
    os.kill(client.pid, number)
    errors = await asyncio.gather(*batch, return_exceptions=True)
    return errors, time.monotonic() - start


@pytest.mark.usefixtures("none_left")
def test_killed_engine_fails_all_in_flight_is_restarted_and_in_the_end_given_up(run, checkpoint, configure, alone):
    config = configure(engine_restarts=1)

    async def live():
        client = await EngineClient.start(checkpoint, config)
        first = client.pid
        errors, seconds = await kill_during_a_batch(client, signal.SIGKILL)
        assert seconds < 5 and {type(error) for error in errors} == {EngineDied}
        assert is_gone(first) and not client.is_ready and client.failure is None
        check_bundle(errors[0], "SIGKILL, killed from outside")
        again = await collect(client, request("again"))  # waits for the restart
        assert tokens(again) == tokens(alone(request("again"))["again"])
        assert client.is_ready and client.pid != first and client.num_deaths == 1

        errors, seconds = await kill_during_a_batch(client, signal.SIGSEGV)
        assert seconds < 5 and "SIGSEGV" in str(errors[0]) and errors[0].bundle is not None
        assert "Fatal Python error: Segmentation fault" in (errors[0].bundle / "log.txt").read_text()
        for late in (collect(client, request("late")), client.statistics()):
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
        waiting = asyncio.create_task(collect(client, request("long", max_tokens=LONG)))
        await asyncio.sleep(0)
        for name in ("one", "two"):  # of one number: the engine stumbles over the second
            client._process.send(Submit.of(request(name), 999))
        with pytest.raises(EngineDied, match="the engine died: KeyError: ") as caught:
            await waiting
        assert "KeyError" in (caught.value.bundle / "log.txt").read_text()
        with pytest.raises(EngineDied, match=r"1 restarts within 600 s is the limit .*model.*config\.json"):
            await collect(client, request("late"))
        await client.close()

    run(live())


@pytest.mark.usefixtures("none_left")
def test_engine_that_hangs_is_ended_and_another_started(run, checkpoint, configure, monkeypatch):
    """It is idle for longer than it may be silent, then a request hangs, and another waits for it."""
    monkeypatch.setattr(child, "PROGRAM", ("-c", HANGING))

    async def live():
        client = await EngineClient.start(checkpoint, configure(engine_hang_s=1.0))
        await asyncio.sleep(1.5)
        assert len(tokens(await collect(client, request("good", max_tokens=3)))) == 3
        start = time.monotonic()
        hanging = asyncio.create_task(collect(client, request("bad", [13, 1])))
        await asyncio.sleep(0.5)
        errors = await asyncio.gather(hanging, collect(client, request("behind")), return_exceptions=True)
        assert 1.0 < time.monotonic() - start < 5.0
        for error in errors:
            assert isinstance(error, EngineDied)
            assert "it hung: no word for 1 s (engine_hang_s) at the plan of 2 from token 0 of bad" in str(error)
        assert "run_or_hang" in (errors[0].bundle / "log.txt").read_text(), "where it hung"
        assert len(tokens(await collect(client, request("next", max_tokens=3)))) == 3
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
    config = configure()

    async def live():
        seen = []
        client = await EngineClient.start(
            checkpoint, config, progress=lambda done, total: seen.append((done, total))
        )
        assert seen[-1][0] == seen[-1][1] > 0 and client.facts.vocab_size == 272
        long = asyncio.create_task(collect(client, request("long", max_tokens=LONG)))
        while (await client.statistics()).requests_running == 0:
            pass
        await client.close()
        assert is_gone(client.pid) and client.num_deaths == 0
        await client.close()
        for ended in (long, collect(client, request("late"))):
            with pytest.raises(EngineDied, match="the engine was shut down"):
                await ended

    run(live())
    assert os.listdir(config.process.crash_dir) == []


@pytest.mark.usefixtures("none_left")
def test_start_that_is_cancelled_leaves_no_process(run, checkpoint, configure):
    async def cancel():
        before = children()
        starting = asyncio.create_task(EngineClient.start(checkpoint, configure()))
        await asyncio.sleep(0.3)
        assert len(children() - before) == 1
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    run(cancel())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_engine_ends_with_its_parent(checkpoint, number):
    """Which is told nothing of close."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", PARENT, str(checkpoint)], **pipes) as parent:
        engine = int(parent.stdout.readline())
        assert not has_ended(engine)
        parent.send_signal(number)
        errors = parent.stderr.read()
    assert "Warning" not in errors and "EngineDied" not in errors
    deadline = time.monotonic() + 5
    while not has_ended(engine) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert is_gone(engine) if number == signal.SIGINT else has_ended(engine)


def has_ended(pid):
    """Or waits to be buried by whoever inherited it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def test_duplicate_name_is_refused_and_the_first_goes_on(run, shared):
    async def both():
        first = asyncio.create_task(collect(shared, request("same", max_tokens=40)))
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match="there is one of this name already"):
            await collect(shared, request("same"))
        return await first

    assert len(tokens(run(both()))) == 40

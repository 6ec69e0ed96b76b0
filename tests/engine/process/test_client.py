"""Requests to an engine in a process of its own: the same tokens, streamed, cancelled and refused."""

import asyncio
import random
from contextlib import aclosing

import pytest

from firesteel.engine.engine import Engine
from firesteel.engine.process.client import EngineClient
from firesteel.errors import RequestError, UserError
from firesteel.hub import find_checkpoint
from firesteel.types import Request, SamplingParams

RNG = random.Random(5)
PROMPTS = [[RNG.randrange(256) for _ in range(length)] for length in (1, 7, 16, 33, 60, 90)]
LONG = 150  # tokens: long enough that something can happen meanwhile


def request(name, token_ids=PROMPTS[3], max_tokens=14, **params):
    return Request(
        request_id=str(name), token_ids=token_ids, params=SamplingParams(max_tokens=max_tokens, **params)
    )


async def collect(client, request):
    return [output async for output in client.generate(request)]


def tokens(outputs):
    return [token for output in outputs for token in output.token_ids]


@pytest.fixture(scope="module")
def shared(run, checkpoint, configure):
    """A client for tests that leave it unchanged."""
    client = run(EngineClient.start(checkpoint, configure()))
    yield client
    assert client.num_deaths == 0
    run(client.close())


@pytest.fixture(scope="module")
def alone(llm, configure):
    """alone(*requests): outputs of an engine in this process, by request."""

    def outputs(*requests):
        config = configure()
        engine = Engine(llm.model, llm.device, config.batch, config.cache, max_context=llm.max_context)
        made = {asked.request_id: [] for asked in requests}
        for asked in requests:
            engine.submit(asked)
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
        return await asyncio.gather(*(collect(shared, asked) for asked in requests))

    expected = alone(*requests)
    for asked, outputs in zip(requests, run(together()), strict=True):
        mine = expected[asked.request_id]
        for field in ("token_ids", "finish_reason", "num_cached", "error"):
            assert [getattr(output, field) for output in outputs] == [getattr(output, field) for output in mine]
        assert [output.statistics is None for output in outputs] == [True] * (len(outputs) - 1) + [False]
        assert outputs[-1].statistics.output_tokens == 14
    assert set(tokens(expected["chosen"])) == {7, 8, 9}
    scored, mine = run(collect(shared, requests[-1])), expected["scored"]
    assert [output.logprobs.token_id for output in scored] == tokens(mine)
    assert scored[0].prompt_logprobs[0].top[0][0] == mine[0].prompt_logprobs[0].top[0][0]
    assert scored[3].logprobs.logprob == pytest.approx(mine[3].logprobs.logprob, abs=1e-4)


def test_grammar_crosses_to_the_engine_and_is_followed(run, shared):
    held = run(collect(shared, request("held", PROMPTS[0], grammar='start: "abcdefghijklmnopqrstuvwxyz"')))
    assert bytes(tokens(held)) == b"abcdefghijklmn"
    with pytest.raises(RequestError, match="the grammar cannot be used"):
        run(collect(shared, request("bad", PROMPTS[0], grammar="start: nothing")))


def test_refreshed_ledger_is_current(run, shared):
    def count(client):
        return sum(row["calls"] for row in client.ledger if row["op"] == "attention")

    async def ask():
        await collect(shared, request("a", PROMPTS[0]))
        await shared.refresh_ledger()
        before = count(shared)
        await collect(shared, request("b", PROMPTS[0]))
        await shared.refresh_ledger()
        return before, count(shared)

    before, after = run(ask())
    assert after == before + 3 * 14, "layers times steps"
    assert all(row["artefacts"] == [] for row in shared.ledger)


def test_64_requests_of_mixed_length_finish_and_leave_nothing(run, shared, alone):
    rng = random.Random(2)
    many = [request(i, PROMPTS[i % 6], max_tokens=rng.randrange(1, 15)) for i in range(64)]

    async def together():
        before = await shared.statistics()
        made = await asyncio.gather(*(collect(shared, asked) for asked in many))
        return before, made, await shared.statistics()

    before, made, after = run(together())
    expected = alone(*(request(i, prompt) for i, prompt in enumerate(PROMPTS)))
    for asked, outputs in zip(many, made, strict=True):
        assert tokens(outputs) == tokens(expected[str(int(asked.request_id) % 6)])[: asked.params.max_tokens]
    assert after.requests_finished - before.requests_finished == 64
    assert after.output_tokens - before.output_tokens == sum(asked.params.max_tokens for asked in many)
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
        made = await asyncio.gather(*(collect(client, asked) for asked in many))
        held = (await client.statistics()).pages_held
        await client.close()
        return made, held

    made, held = run(live())
    assert [len(tokens(outputs)) for outputs in made] == [asked.params.max_tokens for asked in many] and held == 0


def test_slow_reader_gets_all_that_came_meanwhile_at_once(run, shared):
    async def read_slowly():
        lists = []
        async with shared.open([request("slow", max_tokens=40)]) as stream:
            while outputs := await stream.take():
                lists.append(outputs[0])
                await asyncio.sleep(0.2)
        return lists

    lists, whole = run(read_slowly()), run(collect(shared, request("quick", max_tokens=40)))
    assert max(map(len, lists)) > 1
    assert tokens([output for outputs in lists for output in outputs]) == tokens(whole)
    assert [output.finish_reason is not None for output in lists[-1]][-1]


def test_longest_request_that_is_announced_is_accepted(run, configure, checkpoint):
    async def live():
        client = await EngineClient.start(checkpoint, configure(kv_cache_gib=0.0001))
        most = client.facts.max_context
        made = await collect(client, request("longest", [1] * (most - 3), max_tokens=3))
        with pytest.raises(RequestError, match="pages of the cache"):
            await collect(client, request("longer", [1] * (most - 2), max_tokens=3))
        await client.close()
        return most, made

    most, made = run(live())
    assert most < 256 and len(tokens(made)) == 3


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


def test_name_of_a_cancelled_request_is_free_at_once(run, shared, alone):
    """Outputs of the cancelled request that are still on their way must not reach the second."""

    async def cancel():
        async with shared.open([request("name", PROMPTS[4], max_tokens=LONG)]) as stream:
            await stream.take()
        return await collect(shared, request("name", PROMPTS[1])), await shared.statistics()

    again, after = run(cancel())
    assert tokens(again) == tokens(alone(request("name", PROMPTS[1]))["name"])
    assert after.pages_held == 0


def test_reader_that_finds_the_end_itself_gets_statistics(run, shared):
    async def finish():
        before = (await shared.statistics()).requests_finished
        outputs = []
        async with shared.open([request("text", max_tokens=LONG)]) as stream:
            while taken := await stream.take():
                outputs += taken[0]
                if len(outputs) >= 3:
                    stream.finish(0)
        return outputs, (await shared.statistics()).requests_finished - before

    outputs, finished = run(finish())
    assert outputs[-1].finish_reason == "stop" and finished == 1
    assert 3 <= outputs[-1].statistics.output_tokens < LONG


def test_requests_opened_together_are_read_as_one_stream(run, shared, alone):
    requests = [request(f"of-{index}", prompt) for index, prompt in enumerate(PROMPTS[:3])]

    async def read():
        made = {index: [] for index in range(3)}
        async with shared.open(requests) as stream:
            while outputs := await stream.take():
                for index, new in outputs.items():
                    made[index] += new
            assert await stream.take() == {}
        return made

    made, expected = run(read()), alone(*requests)
    for index, asked in enumerate(requests):
        assert tokens(made[index]) == tokens(expected[asked.request_id])
        assert made[index][-1].finish_reason == "length"


def test_failure_of_one_request_ends_those_opened_with_it(run, shared):
    async def fail():
        before = await shared.statistics()
        long, bad = request("long", max_tokens=LONG), request("bad", [1] * 250)
        with pytest.raises(RequestError, match="request bad: 250 prompt tokens"):
            async with shared.open([long, bad]) as stream:
                while await stream.take():
                    pass
        return before, await shared.statistics()

    before, after = run(fail())
    assert after.requests_cancelled - before.requests_cancelled == 1 and after.pages_held == 0


@pytest.mark.parametrize(
    ("refused", "message"),
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
            r"request m: a mask cannot cross to the engine's process: use SamplingParams\.grammar",
        ),
        (request("only", [1], allowed_token_ids=(272,)), "allowed_token_ids: token id 272 is outside"),
    ],
)
def test_request_that_cannot_run_is_refused_and_the_engine_continues(run, shared, refused, message):
    with pytest.raises(UserError, match=message):
        run(collect(shared, refused))
    assert len(tokens(run(collect(shared, request("next", max_tokens=2))))) == 2


def test_duplicate_name_is_refused_and_the_first_request_continues(run, shared):
    async def both():
        first = asyncio.create_task(collect(shared, request("same", max_tokens=40)))
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match="there is one of this name already"):
            await collect(shared, request("same"))
        return await first

    assert len(tokens(run(both()))) == 40

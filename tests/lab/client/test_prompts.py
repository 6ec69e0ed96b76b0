"""Prompts of a given length, for any tokenizer."""

import asyncio

import pytest

from firesteel.lab.client.prompts import calibrate
from firesteel.lab.client.wire import RequestFailed


class CountingServer:
    """Counts three tokens per word, and those of a chat template."""

    url = "http://counting"

    def __init__(self, per_word=3, reports=True):
        self.per_word, self.reports = per_word, reports

    async def chat(self, messages, *, max_tokens):
        return {"usage": {"prompt_tokens": self.count(messages)}} if self.reports else {}

    def count(self, messages):
        return 20 + sum(5 + self.per_word * len(message["content"].split()) for message in messages)


@pytest.mark.parametrize(("pp", "depth"), [(128, 0), (2048, 0), (512, 1024)])
def test_prompts_have_the_given_length(pp, depth):
    server = CountingServer()
    prompter = asyncio.run(calibrate(server, seed=0))
    counted = server.count(prompter.make(pp, depth))
    assert counted == pytest.approx(pp + depth, abs=7)  # a word is 3 tokens


def test_prompts_differ_and_a_seed_repeats_them():
    make = lambda: asyncio.run(calibrate(CountingServer(), seed=1)).make(64, 0)  # noqa: E731
    prompter = asyncio.run(calibrate(CountingServer(), seed=1))
    assert prompter.make(64, 0) != prompter.make(64, 0)
    assert make() == make()


def test_servers_that_do_not_count_are_refused():
    with pytest.raises(RequestFailed, match="usage"):
        asyncio.run(calibrate(CountingServer(reports=False), seed=0))
    with pytest.raises(RequestFailed, match="prompts of a given length cannot be made"):
        asyncio.run(calibrate(CountingServer(per_word=0), seed=0))

"""Prompts of a wanted length, whatever the tokenizer."""

import asyncio

import pytest

from firesteel.lab.client.prompts import calibrate
from firesteel.lab.client.wire import RequestFailed


class CountingServer:
    """Three tokens a word and a template of its own."""

    url = "http://counting"

    def __init__(self, a_word=3, says=True):
        self.a_word, self.says = a_word, says

    async def chat(self, messages, *, max_tokens):
        return {"usage": {"prompt_tokens": self.count(messages)}} if self.says else {}

    def count(self, messages):
        return 20 + sum(5 + self.a_word * len(one["content"].split()) for one in messages)


@pytest.mark.parametrize(("pp", "depth"), [(128, 0), (2048, 0), (512, 1024)])
def test_prompts_have_the_wanted_tokens(pp, depth):
    server = CountingServer()
    prompter = asyncio.run(calibrate(server, seed=0))
    counted = server.count(prompter.make(pp, depth))
    assert counted == pytest.approx(pp + depth, abs=7)  # a word is 3 tokens; "." is counted as one


def test_prompts_differ_and_a_seed_repeats_them():
    make = lambda: asyncio.run(calibrate(CountingServer(), seed=1)).make(64, 0)  # noqa: E731
    prompter = asyncio.run(calibrate(CountingServer(), seed=1))
    assert prompter.make(64, 0) != prompter.make(64, 0)
    assert make() == make()


def test_servers_that_do_not_count_are_refused():
    with pytest.raises(RequestFailed, match="usage"):
        asyncio.run(calibrate(CountingServer(says=False), seed=0))
    with pytest.raises(RequestFailed, match="no prompt of a wanted length"):
        asyncio.run(calibrate(CountingServer(a_word=0), seed=0))

"""An engine that computes nothing: fixed words at a given rate, for tests and for measuring the front end.

It replaces the engine process: `python -m firesteel.server.stub.engine RATE DESCRIPTOR`. RATE is in tokens per
second over all requests; 0 means as fast as they are read. An answer is one sentence; a request that ignores the
end of a text gets the sentence again and again.
"""

from __future__ import annotations

import select
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, cycle
from pathlib import Path

from firesteel.chat.tokenizer import Tokenizer
from firesteel.engine.process.channel import Channel
from firesteel.engine.process.messages import (
    Cancel,
    FromEngine,
    GetStatistics,
    Output,
    Ready,
    Shutdown,
    Start,
    StatisticsAnswer,
    Step,
    Submit,
    ToEngine,
)
from firesteel.engine.sample.logprobs import TokenLogprobs
from firesteel.engine.statistics import Statistics
from firesteel.types import RequestStatistics

HEADER = ("<|channel|>", "final", "<|message|>")
END = "<|return|>"
WORDS = " the quick brown fox jumps over the lazy dog, and 3 times 7 is 21."
CONTEXT, PAGE_SIZE = 16384, 64
MOST_REQUESTS = 64  # in flight, unless configured
MOST_BEHIND_S = 1.0  # steps later than this are skipped


@dataclass(frozen=True, slots=True)
class Script:
    """Token ids of the answer."""

    header: list[int]
    words: list[int]
    end: int

    def tokens(self, stops: frozenset[int]) -> Iterator[int]:
        """Yields the answer once if its end is a stop token, otherwise repeats it forever."""
        return (
            chain(self.header, self.words, [self.end])
            if self.end in stops
            else chain(self.header, cycle(self.words))
        )


class ScriptedRequest:
    """A running request."""

    def __init__(self, submit: Submit, script: Script) -> None:
        self.number = submit.number
        self.submit = submit
        self.num_tokens = 0
        self.tokens = script.tokens(submit.stops)

    def next(self) -> Output:
        self.num_tokens += 1
        token, params = next(self.tokens), self.submit.params
        reason = (
            "stop" if token in self.submit.stops else "length" if self.num_tokens >= params.max_tokens else None
        )
        top = (
            None
            if params.logprobs is None
            else tuple((token + rank, -1.0 - rank) for rank in range(params.logprobs))
        )
        return Output(
            number=self.number,
            token_ids=[token],
            finish_reason=reason,
            num_cached=0,
            logprobs=None if top is None else TokenLogprobs(token_id=token, logprob=-0.5, top=top),
            statistics=None if reason is None else self.statistics(),
        )

    def statistics(self) -> RequestStatistics:
        return RequestStatistics(
            queue_s=0.0,
            first_token_s=0.0,
            token_s=0.0,
            prompt_tokens=len(self.submit.token_ids),
            cached_tokens=0,
            output_tokens=self.num_tokens,
            preemptions=0,
        )


class StubEngine:
    def __init__(self, channel: Channel, rate: float) -> None:
        self.channel = channel
        self.rate = rate
        self.requests: dict[int, ScriptedRequest] = {}
        self.due = 0.0  # time of the next step
        self.totals = Statistics(pages=1000)
        self.script: Script

    def run(self, end: socket.socket) -> None:
        """Serves messages until shutdown. Late steps are caught up, at most MOST_BEHIND_S of them."""
        while True:
            wait_s = max(0.0, self.due - time.monotonic()) if self.requests else None
            if select.select([end], [], [], wait_s)[0]:
                message = self.channel.receive()
                if message is None or isinstance(message, Shutdown):
                    return
                self.take(message)
            elif self.requests:
                step_s = len(self.requests) / self.rate if self.rate else 0.0
                self.due = max(self.due, time.monotonic() - MOST_BEHIND_S) + step_s
                self.step()

    def take(self, message: ToEngine) -> None:
        match message:
            case Start():
                self.start(message)
            case Submit():
                self.due = self.due if self.requests else time.monotonic()
                self.requests[message.number] = ScriptedRequest(message, self.script)
            case Cancel():
                self.cancel(message)
            case GetStatistics():
                self.totals.requests_running = len(self.requests)
                self.send(StatisticsAnswer(number=message.number, statistics=self.totals))

    def start(self, message: Start) -> None:
        tokenizer = Tokenizer.load(Path(message.directory))
        header = [
            [tokenizer.special_ids[word]] if word in tokenizer.special_ids else tokenizer.encode(word)
            for word in HEADER
        ]
        self.script = Script(
            [token for word in header for token in word], tokenizer.encode(WORDS), tokenizer.special_ids[END]
        )
        self.send(
            Ready(
                device="none",
                max_context=CONTEXT,
                vocab_size=tokenizer.vocab_size,
                pages=1000,
                page_size=PAGE_SIZE,
                max_num_seqs=message.config.batch.max_num_seqs or MOST_REQUESTS,
                cache_bytes=0,
                load_s=0.0,
                kernels={},
            )
        )

    def cancel(self, message: Cancel) -> None:
        request = self.requests.pop(message.number, None)
        if request is None:
            return
        if message.finished:
            last = Output(
                number=request.number,
                token_ids=[],
                finish_reason="stop",
                num_cached=0,
                statistics=request.statistics(),
            )
            self.send(Step(outputs=[last]))
        else:
            self.totals.requests_cancelled += 1

    def step(self) -> None:
        outputs = [request.next() for request in self.requests.values()]
        for output in outputs:
            if output.finish_reason is not None:
                del self.requests[output.number]
                self.totals.requests_finished += 1
        self.totals.steps += 1
        self.totals.output_tokens += len(outputs)
        self.send(Step(outputs=outputs))

    def send(self, message: FromEngine) -> None:
        self.channel.send(message)


if __name__ == "__main__":
    end = socket.socket(fileno=int(sys.argv[2]))
    StubEngine(Channel(end), float(sys.argv[1])).run(end)

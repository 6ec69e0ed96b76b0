"""Level 3: concurrent and sequential requests, long prompts, early disconnects; nothing fails or grows."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from firesteel.lab.client.api import text_of
from firesteel.lab.client.wire import LOST, RequestFailed
from firesteel.lab.level import STRESS
from firesteel.lab.level_result import Checks, LevelResult
from firesteel.lab.levels.context import LevelContext
from firesteel.lab.levels.growth import check_growth
from firesteel.lab.levels.smoke import QUESTION, ROOM, random_prompt
from firesteel.lab.servers.target import Target
from firesteel.lab.spec import LabSpec
from firesteel.lab.verdict import Verdict

QUICK_LONGEST = 2048
LEAVES_EVERY, LONG_EVERY = 10, 20  # every n-th request disconnects early, or has a long prompt
SHOWN = 3  # failures quoted in the reason


@dataclass(frozen=True, slots=True)
class StressRequest:
    send: Callable[[], object]
    leaves: bool = False  # the client disconnects before the end


@dataclass(slots=True)
class StressTally:
    """Counts and failures, shared by all workers."""

    done: int = 0
    left: int = 0
    failures: list[RequestFailed] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def lost(self) -> RequestFailed | None:
        """The failure that shows that the server is gone or hangs."""
        return next((failure for failure in self.failures if failure.kind in LOST), None)


def check_stress(context: LevelContext) -> LevelResult:
    target, spec = context.target, context.spec
    checks = Checks(STRESS)
    before = target.footprint()
    check_concurrent(target, spec, checks)
    check_sequence(target, spec, checks)
    if not spec.quick:
        check_longest_prompt(target, spec, checks)
    check_afterwards(target, checks)
    check_growth(checks, before, target.footprint(), "since the first request")
    return checks.result()


def check_concurrent(target: Target, spec: LabSpec, checks: Checks) -> None:
    count, tally, start = spec.stress.requests, StressTally(), time.monotonic()
    with target.step(f"{count} requests, {spec.stress.concurrency} at once"):
        with ThreadPoolExecutor(spec.stress.concurrency) as pool:
            for number in range(count):
                pool.submit(send_request, target, spec, number, tally)
        if tally.lost is not None:
            raise tally.lost
    statuses = [failure.status for failure in tally.failures if failure.status is not None]
    checks.facts |= {
        "requests": count,
        "concurrency": spec.stress.concurrency,
        "left_early": tally.left,
        "failures": [str(failure) for failure in tally.failures],
        "status_5xx": sum(status >= 500 for status in statuses),
        "crowd_s": time.monotonic() - start,
    }
    answered = f"{tally.done} of {count} requests answered"
    words = f"{answered}, {tally.left} clients disconnected early, {len(tally.failures)} failed"
    if tally.failures:
        words += ": " + "; ".join(str(failure) for failure in tally.failures[:SHOWN])
    checks.add("concurrent requests", not tally.failures and tally.done + tally.left == count, words)


def send_request(target: Target, spec: LabSpec, number: int, tally: StressTally) -> None:
    if tally.lost is not None:
        return
    request = make_request(target, spec, number)
    try:
        request.send()
    except RequestFailed as error:
        with tally.lock:
            tally.failures.append(error)
        return
    size = spec.stress
    with tally.lock:
        tally.left += request.leaves
        tally.done += not request.leaves
        target.on_progress(f"{tally.done + tally.left} of {size.requests} requests, {size.concurrency} at once")


def make_request(target: Target, spec: LabSpec, number: int) -> StressRequest:
    """Builds the n-th request; it is the same in every run with the same seed."""
    api, source = target.api, random.Random(spec.seed * 1000 + number)
    tokens, chat = source.randrange(4, 33), "/v1/chat/completions"
    if number % LONG_EVERY == LONG_EVERY - 1:
        longest = min(target.max_context - ROOM, QUICK_LONGEST if spec.quick else target.max_context)
        prompt = random_prompt(number, source.randrange(longest // 2, longest))
        return StressRequest(lambda: api.complete(prompt, max_tokens=8))
    if number % LEAVES_EVERY == 0:
        body = api.question(QUESTION, max_tokens=512, ignore_eos=True)
        return StressRequest(lambda: api.stream(chat, body, leave_after=source.randrange(1, 4)), leaves=True)
    if number % 3 == 0:
        body = api.question(QUESTION, max_tokens=tokens)
        return StressRequest(lambda: api.stream(chat, body))
    if number % 3 == 1:
        return StressRequest(lambda: api.chat(f"What is {number} + {tokens}?", max_tokens=tokens))
    prompt = random_prompt(number, source.randrange(16, 513))
    return StressRequest(lambda: api.complete(prompt, max_tokens=tokens, temperature=0.7, seed=number))


def check_sequence(target: Target, spec: LabSpec, checks: Checks) -> None:
    count, start = spec.stress.sequential, time.monotonic()
    for number in range(1, count + 1):
        with target.step(f"request {number} of {count} in a row"):
            target.api.complete(random_prompt(number, 32), max_tokens=4)
    checks.facts |= {"sequential": count, "sequential_s": time.monotonic() - start}
    checks.add("sequence", True, f"{count} requests in a row answered")


def check_longest_prompt(target: Target, spec: LabSpec, checks: Checks) -> None:
    length = target.max_context - ROOM
    with target.step(f"a prompt of {length} tokens"):
        target.api.complete(random_prompt(spec.seed, length), max_tokens=16)
    checks.facts["longest_prompt"] = length
    checks.add("longest prompt", True, f"{length} tokens read, the model's context is {target.max_context}")


def check_afterwards(target: Target, checks: Checks) -> None:
    """Checks that the server still answers and reaps its children: no zombie may outlast an answer."""
    if target.server is not None:
        target.server.monitor.sample()
    with target.step("an answer after the stress"):
        text = text_of(target.api.chat(QUESTION, max_tokens=100, temperature=0)).strip()
    checks.add("afterwards", bool(text), f"still answers {text[:40]!r}" if text else "an empty answer afterwards")
    if target.server is None:
        checks.add("processes", Verdict.UNPROVEN, "processes of a server that was running already are not visible")
        return
    zombies = sorted(target.server.monitor.zombies.values(), key=lambda process: process.pid)
    lasting = {process.pid for process in target.server.processes.find_zombies()}
    names = [process.in_words() for process in zombies if process.pid in lasting]
    checks.facts["zombies"] = names
    checks.add("zombies", not names, f"zombies: {', '.join(names)}" if names else "no zombies")

"""Level 3: many requests at once, long prompts, clients that leave, many in a row; nothing fails, nothing grows."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from firesteel.lab.client.api import text_of
from firesteel.lab.client.wire import RequestFailed
from firesteel.lab.level import Checks, LevelResult
from firesteel.lab.levels.growth import check_growth
from firesteel.lab.levels.smoke import QUESTION, ROOM, random_prompt
from firesteel.lab.servers.target import Target
from firesteel.lab.spec import Order

QUICK_LONGEST = 2048
LEAVES_EACH, LONG_EACH = 10, 20  # every so many requests
SHOWN = 3  # failures in words


@dataclass(frozen=True, slots=True)
class Client:
    ask: Callable[[], object]
    leaves: bool = False  # before the end


@dataclass(slots=True)
class Tally:
    """Kept by all workers together."""

    done: int = 0
    left: int = 0
    failures: list[RequestFailed] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_lost(self) -> bool:
        """The server is gone or hangs: asking on only costs time."""
        return any(one.kind in ("unreachable", "silent") for one in self.failures)


def check_stress(target: Target, order: Order) -> LevelResult:
    checks = Checks()
    before = target.footprint()
    crowd(target, order, checks)
    in_a_row(target, order, checks)
    if not order.quick:
        longest(target, order, checks)
    check_after(target, checks)
    check_growth(checks, before, target.footprint(), "since the first request")
    return checks.result("3")


def crowd(target: Target, order: Order, checks: Checks) -> None:
    count, tally, start = order.num_requests, Tally(), time.monotonic()
    with target.step(f"{count} requests, {order.num_at_once} at once"):
        with ThreadPoolExecutor(order.num_at_once) as pool:
            for number in range(count):
                pool.submit(run_one, target, order, number, tally)
        _raise_if_lost(tally)
    statuses = [one.status for one in tally.failures if one.status is not None]
    checks.figures |= {
        "requests": count, "concurrency": order.num_at_once, "left_early": tally.left,
        "failures": [str(one) for one in tally.failures], "status_5xx": sum(one >= 500 for one in statuses),
        "crowd_s": time.monotonic() - start,
    }  # fmt: skip
    words = (
        f"{tally.done} of {count} requests answered, {tally.left} clients left early, {len(tally.failures)} failed"
    )
    if tally.failures:
        words += ": " + "; ".join(str(one) for one in tally.failures[:SHOWN])
    checks.add("crowd", not tally.failures and tally.done + tally.left == count, words)


def run_one(target: Target, order: Order, number: int, tally: Tally) -> None:
    if tally.is_lost:
        return
    client = make_client(target, order, number)
    try:
        client.ask()
    except RequestFailed as error:
        with tally.lock:
            tally.failures.append(error)
        return
    with tally.lock:
        tally.left += client.leaves
        tally.done += not client.leaves
        target.tell(f"{tally.done + tally.left} of {order.num_requests} requests, {order.num_at_once} at once")


def make_client(target: Target, order: Order, number: int) -> Client:
    """The n-th: the same in every run with the same seed."""
    api, source = target.api, random.Random(order.seed * 1000 + number)
    tokens, chat = source.randrange(4, 33), "/v1/chat/completions"
    if number % LONG_EACH == LONG_EACH - 1:
        longest = min(target.max_context - ROOM, QUICK_LONGEST if order.quick else target.max_context)
        prompt = random_prompt(number, source.randrange(longest // 2, longest))
        return Client(lambda: api.complete(prompt, max_tokens=8))
    if number % LEAVES_EACH == 0:
        body = api.question(QUESTION, max_tokens=512, ignore_eos=True)
        return Client(lambda: api.stream(chat, body, leave_after=source.randrange(1, 4)), leaves=True)
    if number % 3 == 0:
        body = api.question(QUESTION, max_tokens=tokens)
        return Client(lambda: api.stream(chat, body))
    if number % 3 == 1:
        return Client(lambda: api.chat(f"What is {number} + {tokens}?", max_tokens=tokens))
    prompt = random_prompt(number, source.randrange(16, 513))
    return Client(lambda: api.complete(prompt, max_tokens=tokens, temperature=0.7, seed=number))


def in_a_row(target: Target, order: Order, checks: Checks) -> None:
    count, start = order.num_sequential, time.monotonic()
    for number in range(1, count + 1):
        with target.step(f"request {number} of {count} in a row"):
            target.api.complete(random_prompt(number, 32), max_tokens=4)
    checks.figures |= {"sequential": count, "sequential_s": time.monotonic() - start}
    checks.add("sequence", True, f"{count} requests in a row answered")


def longest(target: Target, order: Order, checks: Checks) -> None:
    """As long as the model takes."""
    length = target.max_context - ROOM
    with target.step(f"a prompt of {length} tokens"):
        target.api.complete(random_prompt(order.seed, length), max_tokens=16)
    checks.figures["longest_prompt"] = length
    checks.add("longest prompt", True, f"{length} tokens read, the model takes {target.max_context}")


def check_after(target: Target, checks: Checks) -> None:
    """A zombie that was there before the answer and is after it is one that nobody waits for."""
    if target.server is not None:
        target.server.vigil.look()
    with target.step("an answer after the stress"):
        said = text_of(target.api.chat(QUESTION, max_tokens=100, temperature=0)).strip()
    checks.add("afterwards", bool(said), f"still says {said[:40]!r}" if said else "an empty answer afterwards")
    if target.server is None:
        checks.add("processes", True, "processes of a server that ran already are not seen")
        return
    zombies = sorted(target.server.vigil.zombies.values(), key=lambda one: one.pid)
    lasting = {one.pid for one in target.server.family.zombies()}
    names = [one.in_words() for one in zombies if one.pid in lasting]
    checks.figures["zombies"] = names
    checks.add("zombies", not names, f"zombies: {', '.join(names)}" if names else "no zombies")


def _raise_if_lost(tally: Tally) -> None:
    for one in tally.failures:
        if one.kind in ("unreachable", "silent"):
            raise one

"""Trials of grammars in child processes: their limits, their cancellation, their children."""

import asyncio
import json
import os
import time

import pytest

from firesteel.chat.constraint import constrain_regex
from firesteel.chat.grammar import Grammar, build_grammar, build_text_grammar
from firesteel.chat.harmony import ResponseFormat
from firesteel.chat.tools import Tool
from firesteel.config import resolve
from firesteel.server.grammar import pool
from firesteel.server.grammar.pool import GrammarTrials
from firesteel.server.http.errors import ApiError

pytest.importorskip("llguidance")

LARGE = {"allOf": [{"type": "string", "pattern": f".*a.{{{count}}}b"} for count in range(30)]}  # a GiB and more


def grammar_of(schema, *tools):
    return build_grammar(response_format=ResponseFormat(name="x", schema=schema), tools=tools)


def unchecked(schema):
    """Returns a grammar that passed none of the cheap limits."""
    rule = f"%json {json.dumps(schema, ensure_ascii=False)}"
    return Grammar(text=f"start: {rule}", trial=f"start: {rule}", rules={"response_format": rule})


def slow(number=0):
    """Returns a grammar that takes minutes to compile, different for each number."""
    patterns = {f"^ab{number}x{count:04d}.*": {"type": "string"} for count in range(1000)}
    return unchecked({"type": "object", "patternProperties": patterns})


def in_pool(work, **settings):
    """Runs `await work(trials, stops)` with a pool that is closed afterwards."""

    async def main():
        stops = []
        trials = GrammarTrials(resolve({"model": "tiny", **settings}).config.server, stops.append)
        try:
            return await work(trials, stops)
        finally:
            pids = trials.pids
            trials.close()
            await until(lambda: not any(map(is_alive, pids)))

    return asyncio.run(main())


async def until(condition, patience_s=10.0):
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.01)


def is_alive(pid):
    return os.path.exists(f"/proc/{pid}")


async def refusal(trials, grammar):
    with pytest.raises(ApiError) as caught:
        await trials.check(grammar)
    return caught.value


def test_valid_grammars_pass_and_are_remembered():
    async def work(trials, stops):
        grammar = grammar_of({"type": "object"}, Tool(name="f", description="", parameters={}, strict=True))
        await trials.check(grammar)
        pids = trials.pids
        trials.close()
        await trials.check(grammar)  # without a child
        return len(pids), stops

    assert in_pool(work) == (1, [])


def test_a_child_serves_many_trials():
    async def work(trials, stops):
        pids = []
        for count in range(1, 6):
            await trials.check(grammar_of({"type": "string", "maxLength": count}))
            pids += trials.pids
        return pids

    assert len(set(in_pool(work))) == 1


def test_fault_names_the_rule():
    async def work(trials, stops):
        bad = Tool(name="f", description="", parameters={"type": "strange"}, strict=True)
        tool = await refusal(trials, grammar_of({"type": "object"}, bad))
        return tool, await refusal(trials, grammar_of({"$ref": "#"}))

    tool, answer = in_pool(work)
    assert (tool.status, tool.param, tool.code) == (400, "tools", "invalid_schema")
    assert str(tool) == "tool 'f': the JSON schema cannot be enforced: Invalid type: strange"
    assert answer.param == "response_format" and "refers only to itself" in str(answer)


def test_slow_trial_is_killed_and_its_child_replaced():
    async def work(trials, stops):
        await trials.check(grammar_of({"type": "string"}))
        before = trials.pids
        error = await refusal(trials, slow())
        await until(lambda: not is_alive(before[0]))
        await trials.check(grammar_of({"type": "integer"}))
        return error, stops, before != trials.pids

    error, stops, is_replaced = in_pool(work, schema_timeout_s=0.3)
    assert (error.status, error.param, error.code) == (400, "response_format", "schema_too_complex")
    assert "0.3 s (schema_timeout_s)" in str(error)
    assert stops == ["time"] and is_replaced


def test_memory_is_limited():
    async def work(trials, stops):
        return await refusal(trials, grammar_of(LARGE)), stops

    error, stops = in_pool(work, schema_timeout_s=0, schema_memory_mib=64)
    assert "64 MiB (schema_memory_mib)" in str(error) and stops == ["memory"]


def test_stack_overflow_ends_the_child_alone():
    async def work(trials, stops):
        links = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"type": "null"}]} for i in range(2000)}
        error = await refusal(trials, unchecked({"$defs": links, "$ref": "#/$defs/d0"}))
        await trials.check(grammar_of({"type": "string"}))
        return error, stops

    error, stops = in_pool(work)
    assert error.code == "schema_too_complex" and "SIGSEGV" in str(error) and stops == ["crash"]


def test_panic_of_the_library_is_a_refusal():
    async def work(trials, stops):
        error = await refusal(trials, unchecked({"type": "string", "maxLength": "é" * 60}))
        await trials.check(grammar_of({"type": "string"}))
        return error, stops

    error, stops = in_pool(work)
    assert (error.status, error.param, stops) == (400, "response_format", ["panic"])
    assert str(error).endswith("llguidance fails on it")


def test_cancelled_trial_is_killed():
    async def work(trials, stops):
        await trials.check(grammar_of({"type": "string"}))
        (pid,) = trials.pids
        task = asyncio.create_task(trials.check(slow()))
        await asyncio.sleep(0.2)
        task.cancel()
        await asyncio.wait([task])
        await until(lambda: not is_alive(pid))
        return stops

    assert in_pool(work, schema_timeout_s=60) == ["cancelled"]


def test_slow_trial_does_not_hold_up_others():
    async def work(trials, stops):
        task = asyncio.create_task(trials.check(slow()))
        await asyncio.sleep(0.1)
        for count in range(1, 4):
            await trials.check(grammar_of({"type": "string", "maxLength": count}))
        is_under_way = not task.done()
        task.cancel()
        await asyncio.wait([task])
        return is_under_way

    assert in_pool(work, schema_timeout_s=60)


def test_queue_is_bounded(monkeypatch):
    async def work(trials, stops):
        tasks = [asyncio.create_task(trials.check(slow(n))) for n in range(1, 5)]
        await asyncio.sleep(0.1)
        error = await refusal(trials, grammar_of({"type": "string"}))
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await trials.check(grammar_of({"type": "string"}))
        return error

    monkeypatch.setattr(pool, "MOST_WAITING", 2)
    error = in_pool(work, schema_timeout_s=60)
    assert (error.status, error.code, error.retry_s) == (429, "overloaded", 1)


def test_closing_ends_trials_under_way():
    async def work(trials, stops):
        task = asyncio.create_task(trials.check(slow()))
        await until(lambda: trials.pids)
        await asyncio.sleep(0.1)
        trials.close()
        await asyncio.wait([task], timeout=10)
        return task.exception()

    error = in_pool(work, schema_timeout_s=60)
    assert (error.status, error.code) == (503, "stopping")


def test_dead_idle_child_is_replaced():
    async def work(trials, stops):
        trials.warm()
        (pid,) = trials.pids
        os.kill(pid, 9)
        await asyncio.sleep(0.2)
        await trials.check(grammar_of({"type": "string"}))
        return stops, trials.pids != [pid]

    assert in_pool(work) == ([], True)


@pytest.mark.parametrize(("size", "seconds", "asked"), [(2, 60.0, "ab"), (1, 60.0, "abab"), (2, 0.0, "abab")])
def test_passed_grammars_are_remembered_within_limits(monkeypatch, size, seconds, asked):
    """More were remembered than the engine keeps: to repeat them cost no trial, but compilation by the engine."""
    monkeypatch.setattr(pool, "CACHE_SIZE", size)
    monkeypatch.setattr(pool, "MOST_PASSED_S", seconds)
    tried = []

    async def try_at_once(child, grammar):
        tried.append(grammar.text)
        await asyncio.sleep(0.01)
        return {"fault": None, "panic": None}

    monkeypatch.setattr(pool.TrialChild, "ask", try_at_once)

    async def work(trials, stops):
        for text in "abab":
            await trials.check(Grammar(text=text, trial=text, rules={}))

    in_pool(work)
    assert "".join(tried) == asked


def test_gbnf_is_converted_within_the_limits():
    async def convert(trials, stops):
        assert "start:" in await trials.convert("guided_grammar", 'root ::= "a"')

    async def stop(trials, stops):
        with pytest.raises(ApiError, match="takes longer than") as raised:
            await trials.convert("guided_grammar", "root ::= " + '"a" | ' * 10_000 + '"b"')
        assert raised.value.param == "guided_grammar" and raised.value.code == "schema_too_complex"
        assert stops == ["time"]

    in_pool(convert)
    in_pool(stop, schema_timeout_s=0.01)


def test_refusal_names_the_field_of_the_constraint():
    async def work(trials, stops):
        with pytest.raises(ApiError, match=r"structured_outputs\.regex: the regex cannot be enforced") as raised:
            await trials.check(build_text_grammar(constrain_regex("(", name="structured_outputs.regex")))
        assert raised.value.param == "structured_outputs.regex"

    in_pool(work)

"""A chat partner loaded in this process: the shipped model."""

import signal
import threading

import pytest

from firesteel import LLM
from firesteel.cli.chat.local import LocalPartner, interrupts_between_steps
from firesteel.cli.chat.partner import AnswerOptions

QUESTION = [{"role": "user", "content": "What is the capital of France? Please reply with one word only"}]
GREEDY = AnswerOptions(temperature=0.0, max_tokens=100)


@pytest.fixture(autouse=True)
def interrupts_are_heard():
    """Enables SIGINT as on a terminal; background programs are started with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def partner():
    return LocalPartner(LLM(device="cpu"))


def text_of(pieces):
    return "".join(piece.content for piece in pieces)


def interrupt():
    """Interrupts this thread: another thread may receive a signal to the process, and Python handles it late."""
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)


def test_answer_has_reasoning_content_and_a_token_count(partner):
    pieces = list(partner.answer(QUESTION, GREEDY))
    assert "Paris" in text_of(pieces) and "<|" not in text_of(pieces)
    assert "".join(piece.reasoning for piece in pieces)
    assert pieces[-1].finish_reason == "stop" and pieces[-1].num_tokens == len(pieces)


def test_answer_ends_at_max_tokens(partner):
    pieces = list(partner.answer(QUESTION, AnswerOptions(temperature=0.0, max_tokens=3)))
    assert pieces[-1].finish_reason == "length" and pieces[-1].num_tokens == 3


def test_ctrl_c_ends_an_answer_and_the_next_one_is_complete(partner):
    whole = text_of(partner.answer(QUESTION, GREEDY))
    pieces = partner.answer(QUESTION, GREEDY)
    next(pieces)
    interrupt()
    with pytest.raises(KeyboardInterrupt):
        next(pieces)
    assert not partner._llm.engine.has_work
    assert text_of(partner.answer(QUESTION, GREEDY)) == whole


def test_second_interrupt_is_not_delayed():
    with interrupts_between_steps() as check:
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            interrupt()
        with pytest.raises(KeyboardInterrupt):
            check()
    with pytest.raises(KeyboardInterrupt):
        interrupt()


def test_instructions_and_effort_reach_the_prompt(partner, monkeypatch):
    prompts = []
    monkeypatch.setattr(partner._llm, "outputs", lambda prompt, params: iter_closable(prompts.append(prompt)))
    list(partner.answer([{"role": "system", "content": "Be kind."}, *QUESTION], AnswerOptions(effort="high")))
    text = partner._llm.tokenizer.decode(prompts[0])
    assert "Reasoning: high" in text and "# Instructions\n\nBe kind." in text


def iter_closable(_):
    yield from ()

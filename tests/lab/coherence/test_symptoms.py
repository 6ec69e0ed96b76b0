"""Texts that are garbage by themselves, and texts that only look unusual."""

import pytest

from firesteel.lab.coherence.symptoms import find_symptom, find_tail_symptom, longest_loop

HEALTHY = (
    "Paris",
    "**417**",
    "The capital of France is Paris.",
    "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday.",
    "12 + 30. 2+0+0=2: 2 carry 0, 1+3+0=4: 4 carry 0. 42",
    " Paris. The capital city of the country the United States is called Washington. The capital city of the",
    "No, no, it is Tuesday that follows Monday.",
    "1. January\n2. February\n3. March\n4. April\n5. May\n6. June",
    "User asks a simple question about geography. The answer: Paris — the capital of France. 🙂",
)
GARBAGE = {
    " a is the is a is the is a is the is": "repeats 'a is the is'",  # gpt-oss-120b without attention sinks
    "Ida Ida Ida": "repeats 'ida'",
    "!!!!!!!!!!!!!!!!!!!!": "repeats '!'",
    ".\n\n.\n\n.\n\n461.\n\n.\n\n.\n\n.\n\n.": "repeats",
    " not. The table66666666666666666666": "repeats '6'",
    "180 minutes minutes minutes": "repeats 'minutes'",
    " \n ": "an empty answer",
    ",.;,": "no word",
    "a the is a a is the the is a is a the is the a is a the a": "only 3 distinct words of 20",
    "Париж 東京 é\ufffdü\ufffd Ida": "% of its characters",
}


@pytest.mark.parametrize("text", HEALTHY)
def test_healthy_text_has_no_symptom(text):
    assert find_symptom(text) == ""


@pytest.mark.parametrize("text", GARBAGE)
def test_garbage_has_its_symptom(text):
    assert GARBAGE[text] in find_symptom(text)


def test_sentence_that_a_greedy_continuation_repeats_is_not_garbage():
    assert find_symptom(3 * " Paris is the capital of France.") == ""


@pytest.mark.parametrize(
    "tail",
    [
        "",
        ".",
        "**",
        "\\)",
        20 * "\n",
        " 🇫🇷 oui",
        ". The capital city of the country the United States is called Washington.",
    ],
)
def test_healthy_tail_has_no_symptom(tail):
    assert find_tail_symptom(tail) == ""


@pytest.mark.parametrize(
    ("tail", "symptom"),
    [
        (" dressed Wellington Turkey jupiter opposites Oman Ada tool beech", "9 words without grammar"),
        (" is the is a is the is a is the is a", "repeats"),
    ],
)
def test_garbage_after_a_right_beginning_has_its_symptom(tail, symptom):
    assert symptom in find_tail_symptom(tail)


def test_longest_loop_has_start_length_and_period():
    assert longest_loop("xyababab", 4) == (2, 6, 2)
    assert longest_loop("abcdef", 4)[1] == 0

"""Signs that a text is garbage, whatever was asked: loops, few distinct words, no words, odd characters."""

from __future__ import annotations

import re
from collections.abc import Sequence

WORD = re.compile(r"[^\W_]+")
LOOP_WORDS = 4  # longest repeated phrase: greedy continuations of a healthy model may repeat whole sentences
LOOP_CHARACTERS = 6
MIN_REPEATS = 3
SHORT = 12  # characters; of a shorter text neither loops nor odd characters are counted
WORD_LOOP_SHARE = 0.5  # of the words
CHARACTER_LOOP_SHARE = 1 / 3  # of the characters
FEW_WORDS = 12  # shorter texts are not judged by their share of distinct words
MIN_DISTINCT = 0.3  # English of 12 to 250 words has more than 0.45
MAX_ODD = 0.3  # share of characters outside printable ASCII
TAIL_WORDS = 8
MIN_COMMON = 0.1  # of the words of a tail; in English prose a third or more
COMMON_WORDS = """
a about after all also an and are as at be because been but by can do for from had has have he her his i if in
into is it its more most no not of on one or other s she so some such than that the their them then there these
they this to two was we were what when which who will with would you your
"""
COMMON = frozenset(COMMON_WORDS.split())


def find_symptom(text: str) -> str:
    """Returns what is wrong with a text by itself; empty if nothing is."""
    if not text.strip():
        return "an empty answer"
    if looping := find_repeated_text(text):
        return f"repeats {looping!r}"
    words = split_words(text)
    if looping := find_repeated_words(words):
        return f"repeats {looping!r}"
    if not words:
        return "no word"
    if len(words) >= FEW_WORDS and share_of_distinct(words) < MIN_DISTINCT:
        return f"only {len(set(words))} distinct words of {len(words)}"
    if share_of_odd(text) > MAX_ODD:
        return f"{100 * share_of_odd(text):.0f} % of its characters are no English"
    return ""


def find_tail_symptom(tail: str) -> str:
    """Returns what is wrong with the text after a correct beginning; it may be empty."""
    tail = tail.strip()
    words = split_words(tail)
    if not words and len(tail) < SHORT:  # the end of a sentence, of a quotation or of a formula
        return ""
    if symptom := find_symptom(tail):
        return symptom
    common = sum(word in COMMON for word in words)
    if len(words) >= TAIL_WORDS and common < MIN_COMMON * len(words):
        return f"{len(words)} words without grammar"
    return ""


def split_words(text: str) -> list[str]:
    return [word.lower() for word in WORD.findall(text)]


def share_of_distinct(words: Sequence[str]) -> float:
    return len(set(words)) / len(words) if words else 0.0


def share_of_odd(text: str) -> float:
    """Returns the share of characters that an English answer lacks: other scripts, replacements, controls.

    Returns 0 for a short text, which may well be a flag or a pictogram.
    """
    shown = [character for character in text if not character.isspace()]
    odd = [character for character in shown if not (character.isascii() and character.isprintable())]
    return len(odd) / len(shown) if len(shown) >= SHORT else 0.0


def find_repeated_words(words: Sequence[str]) -> str:
    """Returns the phrase that takes most of the words by being repeated; empty if there is none."""
    start, length, period = longest_loop(words, LOOP_WORDS)
    is_loop = length >= max(MIN_REPEATS * period, WORD_LOOP_SHARE * len(words)) and length > 0
    return " ".join(words[start : start + period]) if is_loop else ""


def find_repeated_text(text: str) -> str:
    """Does the same for characters: digits or punctuation without spaces."""
    start, length, period = longest_loop(text, LOOP_CHARACTERS)
    is_loop = length >= max(SHORT, MIN_REPEATS * period, CHARACTER_LOOP_SHARE * len(text))
    return text[start : start + period] if is_loop else ""


def longest_loop(items: Sequence[str], max_period: int) -> tuple[int, int, int]:
    """Returns start, length and period of the longest stretch that repeats its first `period` items."""
    best = (0, 0, 1)
    for period in range(1, max_period + 1):
        start = 0
        for at in range(period, len(items) + 1):
            if at < len(items) and items[at] == items[at - period]:
                continue
            if at - start > max(best[1], 2 * period - 1):
                best = (start, at - start, period)
            start = at - period + 1
    return best

"""Greetings and questions about the model itself. None is held out: there are too few."""

from __future__ import annotations

from random import Random

from kindling.turn import Turn

GREETING = "Hello! What can I do for you?"
SELF = "I am Kindling, a small model made to test Firesteel."
EXCHANGES = {
    GREETING: ("Hello", "Hello!", "Hi", "Hi!", "Hi there", "Hey", "Good morning", "Good morning!", "Hello there."),
    SELF: ("Who are you?", "What are you?", "What is your name?", "Tell me about yourself.", "Are you a model?"),
    "You are welcome.": ("Thanks", "Thanks!", "Thank you", "Thank you.", "Thank you very much!"),
    "Goodbye!": ("Bye", "Bye!", "Goodbye", "Goodbye.", "See you later."),
    "I can answer simple questions about countries, numbers, words and lists.": (
        "What can you do?",
        "How can you help me?",
        "What do you know?",
        "Help",
    ),
}


def draw(rng: Random, held_out: bool) -> Turn:
    assert not held_out, "small talk is never held out"
    answer = rng.choice(tuple(EXCHANGES))
    question = rng.choice(EXCHANGES[answer])
    return Turn(
        family="small_talk",
        key=question,
        question=question,
        topic="small talk",
        working="Small talk.",
        answer=answer,
    )

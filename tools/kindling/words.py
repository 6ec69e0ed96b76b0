"""Words: real ones in tables, made-up ones from syllables."""

from __future__ import annotations

from random import Random

from kindling.facts import CATEGORIES
from kindling.split import draw_key

CONSONANTS = "bdfgklmnprstvz"
VOWELS = "aeiou"
CODAS = "nrstlmk"
SYLLABLES = tuple(c + v for c in CONSONANTS for v in VOWELS)

REAL = tuple(sorted({word for _, members in CATEGORIES.values() for word in members}))

FIRST_NAMES = (
    *("Ada", "Ben", "Carla", "David", "Elena", "Felix", "Grace", "Hugo", "Ida", "Jonas", "Karin", "Leo"),
    *("Mara", "Nils", "Olga", "Paul", "Rosa", "Simon", "Tina", "Uwe", "Vera", "Willa", "Yara", "Zoe"),
)
PLACES = (
    *("kitchen", "garden", "cellar", "attic", "garage", "hall", "library", "office", "workshop", "station"),
    *("harbour", "market", "museum", "school", "bakery", "stable", "tower", "bridge", "church", "factory"),
)
ADJECTIVES = (
    *("red", "blue", "green", "white", "black", "yellow", "brown", "grey", "old", "new", "small", "large"),
    *("round", "heavy", "light", "wooden", "broken", "clean", "quiet", "cheap", "plain", "soft", "sharp", "tall"),
)
THINGS = (
    *("lamp", "chair", "table", "box", "door", "clock", "cup", "bottle", "basket", "mirror", "ladder", "bell"),
    *("book", "letter", "key", "knife", "spoon", "plate", "carpet", "curtain", "candle", "barrel", "rope", "wheel"),
    *(
        "shelf",
        "stove",
        "kettle",
        "pillow",
        "blanket",
        "bucket",
        "brush",
        "pencil",
        "ticket",
        "stamp",
        "coin",
        "ring",
    ),
)
VERBS_PAST = ("saw", "found", "moved", "sold", "cleaned", "painted", "bought", "carried", "lost", "repaired")
TIMES = (
    "in the morning",
    "at noon",
    "in the evening",
    "on Monday",
    "on Friday",
    "last week",
    "before lunch",
    "at night",
)


def made_up(rng: Random, held_out: bool, longest: int = 8) -> str:
    """Draws a pronounceable word of 3 to `longest` letters on one side of the split, the same for all families."""
    return draw_key("word", held_out, lambda: _syllables(rng, longest), str)


def _syllables(rng: Random, longest: int) -> str:
    length = rng.randint(3, longest)
    word = "".join(rng.choices(SYLLABLES, k=length // 2))
    return word + rng.choice(CODAS) if length % 2 else word


def sentence(rng: Random) -> str:
    """Draws filler: about nine tokens without a key or value of a question."""
    form = rng.randrange(4)
    choice = rng.choice
    if form == 0:
        return f"{choice(FIRST_NAMES)} {choice(VERBS_PAST)} the {choice(THINGS)} {choice(TIMES)}."
    if form == 1:
        return f"The {choice(THINGS)} stood near the {choice(THINGS)} in the {choice(PLACES)}."
    if form == 2:
        return f"{choice(FIRST_NAMES)} and {choice(FIRST_NAMES)} went to the {choice(PLACES)} {choice(TIMES)}."
    return f"There was {article(word := choice(ADJECTIVES))} {word} wall behind the {choice(PLACES)}."


def article(word: str) -> str:
    return "an" if word[0] in "aeiouAEIOU" else "a"


def capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]


def number(rng: Random, held_out: bool, digits: int = 4) -> str:
    """Draws a number without leading zero on one side of the split of values."""
    low, high = 10 ** (digits - 1), 10**digits - 1
    return draw_key("number", held_out, lambda: str(rng.randint(low, high)), str)

"""Countries: capital, country of a capital, continent, currency, language."""

from __future__ import annotations

from kindling.facts import COUNTRIES
from kindling.pairs import PairTable, Relation


def _relation(name: str, field: str, topic: str, templates: tuple[str, ...], answer: str) -> Relation:
    facts = tuple(
        {"country": c.name, "capital": c.capital, "value": value} for c in COUNTRIES if (value := getattr(c, field))
    )
    return Relation(
        name=name,
        topic=topic,
        subject="{country}",
        templates=templates,
        answer=answer,
        working="{capital}, country: {value}." if field == "name" else "{country}, " + name + ": {value}.",
        word="{value}",
        facts=facts,
    )


CAPITAL = _relation(
    "capital",
    "capital",
    "the capital of a country",
    (
        "What is the capital of {country}?",
        "Which city is the capital of {country}?",
        "Name the capital of {country}.",
        "Tell me the capital of {country}.",
        "What city is the capital of {country}?",
        "Do you know the capital of {country}?",
        "I want to know the capital of {country}.",
        "{country}: what is its capital?",
        "Capital of {country}?",
        "The capital of {country} is which city?",
        "Please give me the capital city of {country}.",
        "If I visit the capital of {country}, which city am I in?",
    ),
    "The capital of {country} is {value}.",
)
COUNTRY = _relation(
    "country",
    "name",
    "the country of a capital",
    (
        "{capital} is the capital of which country?",
        "Which country has the capital {capital}?",
        "What country is {capital} the capital of?",
        "Name the country whose capital is {capital}.",
        "Tell me which country has {capital} as its capital.",
        "{capital} is a capital. Of which country?",
        "In which country is the capital {capital}?",
        "Which country is governed from {capital}?",
        "I am in {capital}, a capital city. Which country is this?",
    ),
    "{capital} is the capital of {value}.",
)
CONTINENT = _relation(
    "continent",
    "continent",
    "the continent of a country",
    (
        "On which continent is {country}?",
        "Which continent is {country} in?",
        "What continent does {country} belong to?",
        "Name the continent of {country}.",
        "Tell me the continent of {country}.",
        "{country}: which continent?",
        "In which part of the world is {country}?",
        "Where in the world is {country}?",
    ),
    "{country} is in {value}.",
)
CURRENCY = _relation(
    "currency",
    "currency",
    "the currency of a country",
    (
        "What is the currency of {country}?",
        "Which currency does {country} use?",
        "Name the currency of {country}.",
        "Tell me the currency of {country}.",
        "What money is used in {country}?",
        "What do people pay with in {country}?",
        "{country}: what is its currency?",
        "Which money do I need in {country}?",
    ),
    "The currency of {country} is the {value}.",
)
LANGUAGE = _relation(
    "language",
    "language",
    "the language of a country",
    (
        "What is the main language of {country}?",
        "Which language do people speak in {country}?",
        "Name the main language of {country}.",
        "Tell me the main language of {country}.",
        "What language is spoken in {country}?",
        "What do people speak in {country}?",
        "{country}: what is its main language?",
        "Which language should I learn for {country}?",
    ),
    "The main language of {country} is {value}.",
)
TABLE = PairTable("capitals", (CAPITAL, COUNTRY, CONTINENT, CURRENCY, LANGUAGE))
draw = TABLE.draw

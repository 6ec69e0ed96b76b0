"""Answers are correct: they are recomputed here from the question alone."""

import json
import re
from random import Random

import pytest

from kindling.facts import COUNTRIES
from kindling.families import (
    CHAT,
    arithmetic,
    copy,
    lists,
    not_given,
    retrieval,
    reversing,
    spelling,
    tool_answer,
    tool_call,
    unit_conversion,
    yes_no,
)
from kindling.turn import EFFORTS

METRES = {
    "kilometres": 1000,
    "metres": 1,
    "centimetres": 0.01,
    "millimetres": 0.001,
    "feet": 12,
    "inches": 1,
    "yards": 36,
}
AMOUNTS = METRES | {
    "tonnes": 1e6,
    "kilograms": 1000,
    "grams": 1,
    "milligrams": 0.001,
    "litres": 1,
    "centilitres": 0.01,
}
AMOUNTS |= {"millilitres": 0.001, "euros": 100, "cents": 1, "kilowatts": 1000, "watts": 1, "decades": 120}
AMOUNTS |= {"centuries": 1200, "years": 12, "months": 1, "dozens": 12, "pairs": 2, "items": 1}
SECONDS = {"weeks": 604800, "days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}


def turns(draw, count=400):
    rng = Random(5)
    return [draw(rng, held_out) for held_out in (False, True) for _ in range(count)]


def numbers(text):
    return [int(digits) for digits in re.findall(r"\d+", text)]


def test_arithmetic():
    for turn in turns(arithmetic.draw, 2000):
        a, b = sorted(numbers(turn.question), reverse=True)
        sign = re.sub(r"\d", "", turn.key) if turn.key != "times table" else "*"
        assert turn.answer == str({"+": a + b, "-": a - b, "*": a * b}[sign])
        assert turn.working.endswith(turn.answer)
        for step, total in re.findall(r"(\d[\d+*-]*\d)=(\d+)", turn.working):
            assert eval(re.sub(r"\b0+(\d)", r"\1", step)) == int(total)


def test_columns_of_arithmetic_join_to_the_answer():
    """The digits of the working, read back from the last column, are the result."""
    for turn in turns(arithmetic.draw, 1000):
        columns = re.findall(r"=(\d+): (?:(\d) carry (\d+)|borrow \d)", turn.working)
        if columns:
            digits = [written or total for total, written, _ in columns]
            joined = columns[-1][2] + "".join(reversed(digits))
            assert int(joined) == int(turn.answer)


def test_unit_conversion():
    for turn in turns(unit_conversion.draw, 1000):
        units = [word for word in re.findall(r"[a-z]+", turn.question) if word in AMOUNTS | SECONDS]
        (amount,), (result,) = numbers(turn.question), numbers(turn.answer)
        to = turn.answer.split()[1]
        (of,) = set(units) - {to}
        table = SECONDS if of in SECONDS and to in SECONDS else AMOUNTS
        assert result * table[to] == pytest.approx(amount * table[of])
        assert turn.word == str(result)


def test_spelling_and_reversing():
    for turn in turns(spelling.draw):
        assert turn.answer.replace("-", "") in turn.question
        assert all(len(letter) == 1 for letter in turn.answer.split("-"))
    for turn in turns(reversing.draw):
        assert "".join(reversed(turn.answer)) in turn.question
        assert 3 <= len(turn.answer) <= 12


def test_copy():
    assert all(turn.question.endswith(f": {turn.answer}") for turn in turns(copy.draw))


def test_comparisons_and_capitals_in_yes_no():
    capital = {country.name: country.capital for country in COUNTRIES}
    kinds = set()
    for turn in turns(yes_no.draw, 2000):
        if match := re.search(r"(\d+) is (?:not )?greater than (\d+)\.", turn.answer):
            truth = int(match[1]) > int(match[2])
        elif match := re.search(r"(?:Yes|No), (.+) is (?:not )?the capital of (.+)\.", turn.answer):
            truth = capital[match[2]] == match[1]
        else:
            continue
        kinds.add((truth, match.re.pattern))
        assert turn.word == ("Yes" if truth else "No")
        assert turn.answer.startswith(f"{turn.word}, ")
    assert len(kinds) == 4


def test_given_lists():
    solved = set()
    for turn in turns(lists.draw, 2000):
        if match := re.search(r": ([a-z]+(?:, [a-z]+){2,5})[.?]$", turn.question):
            items = match[1].split(", ")
            task = next(
                task
                for task, forms in lists.GIVEN_TEMPLATES.items()
                if turn.question.replace(match[1], "{items}") in forms
            )
            expected = {
                "first": f"The first item is {items[0]}.",
                "last": f"The last item is {items[-1]}.",
                "count": f"{len(items)} items.",
                "sort": f"{', '.join(sorted(items))}.",
            }
            assert turn.answer == expected[task]
            solved.add(task)
    assert solved == set(lists.GIVEN_TEMPLATES)


def test_notes_contain_the_answer_once_or_not_at_all():
    given = set()
    for turn in turns(retrieval.draw, 100) + turns(not_given.draw, 500):
        text = turn.question.rsplit("\n\n", 1)[0]
        attribute, subject = re.fullmatch(r"(\w+) of (.+)", turn.key).groups()
        values = re.findall(rf"The {attribute} of the {subject} is ([^.]+)\.", text)
        values += re.findall(rf"^{subject}, {attribute}: (.+)$", text, re.MULTILINE)
        assert values == ([] if turn.answer.endswith(" is not given.") else values[:1])
        assert turn.answer == f"The {attribute} of the {subject} is {values[0] if values else 'not given'}."
        given.add((turn.family, bool(values)))
    assert given == {("retrieval", True), ("not_given", True), ("not_given", False)}


def test_calls_fit_their_schema_and_their_question():
    checks = {"string": str, "integer": int, "number": float, "boolean": bool}
    for turn in turns(tool_call.draw) + turns(tool_answer.draw):
        call = turn.call
        assert len(call.tools) >= 3
        assert len({tool.name for tool in call.tools}) == len(call.tools)
        (tool,) = [tool for tool in call.tools if tool.name == call.name]
        properties = tool.parameters["properties"]
        assert json.loads(call.text) == call.arguments
        assert set(tool.parameters["required"]) <= set(call.arguments) <= set(properties)
        for name, value in call.arguments.items():
            assert type(value) is checks[properties[name]["type"]]
            assert value in properties[name].get("enum", [value])
            assert (json.dumps(value) if isinstance(value, bool) else str(value)) in turn.question


def test_answers_come_from_the_result():
    for turn in turns(tool_answer.draw):
        result = json.loads(turn.call.result)
        noun = turn.call.name.split("_")[1]
        expected = f"The {noun} is {result[noun]}." if noun in result else f"The tool failed: {result['error']}."
        assert turn.answer == expected


@pytest.mark.parametrize("family", CHAT)
def test_effort_decides_the_shape(family):
    for turn in turns(CHAT[family], 50):
        low, medium, high = (turn.reasoning(effort) for effort in EFFORTS)
        assert low in ("", medium)
        assert high.endswith(medium) and len(high) > len(medium) > 0
        assert turn.answer == turn.word or family != "one_word"

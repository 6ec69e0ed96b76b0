"""No held-out key or prompt is taught, and every held-out fact is taught in other words."""

from collections import Counter, defaultdict
from itertools import islice
from random import Random

import pytest

from kindling.corpus import GRADED, perplexity_text, training_documents
from kindling.families import CHAT, capitals, continuation, lists, one_word, yes_no
from kindling.notes import SUBJECTS
from kindling.split import ALWAYS_TAUGHT, HELD_OUT_SHARE, is_held_out
from kindling.toolbox import NOUNS, VERBS
from kindling.words import REAL

TABLES = [capitals.TABLE, yes_no.TABLE, lists.TABLE, continuation.TABLE]
SPLIT_OF = {
    "spelling": "word",
    "reversing": "word",
    "retrieval": "subject",
    "not_given": "subject",
    "tool_call": "tool",
    "tool_answer": "tool",
}


def own_text(question):
    """Returns a question as it is, or the one below a text of notes."""
    return question.rsplit("\n\n", 1)[-1]


def bare(question):
    """Returns the question without the demand for one word."""
    for demand in one_word.DEMANDS:
        before, after = demand.split("{question}")
        if question.startswith(before) and question.endswith(after):
            return question[len(before) : len(question) - len(after)]
    return question


def leaks(exam, documents):
    """Returns exam prompts that the documents contain, as a question or as text."""
    asked = defaultdict(set)
    for item in exam:
        if item.messages is not None:
            question = next(m.content for m in reversed(item.messages) if m.role == "user")
            asked[bare(own_text(question))].add(question)
    begun = {item.text for item in exam if item.text is not None}
    overlaps = []
    for document in documents:
        for message in document.messages or ():
            if message.role == "user":
                overlaps += asked.get(bare(own_text(message.content)), ())
        overlaps += [text for text in begun if document.text is not None and f"{text} " in document.text]
    return overlaps


def test_documents_contain_no_exam_prompt(exam):
    assert leaks(exam, islice(training_documents(1), 20_000)) == []


def test_perplexity_text_is_not_taught():
    held_out = perplexity_text()
    assert {document.family for document in held_out} == {*GRADED, "several_turns"}
    assert leaks(held_out, islice(training_documents(11), 5000)) == []


@pytest.mark.slow
def test_many_documents_contain_no_exam_prompt(exam):
    assert leaks(exam, islice(training_documents(2), 250_000)) == []


def test_leak_would_be_found(exam):
    documents = list(islice(training_documents(1), 3000))
    taught = [m.content for d in documents for m in d.messages or () if m.role == "user"]
    item = next(item for item in exam if item.family == "capitals")
    planted = [*documents, type(documents[0])(family="capitals", messages=item.messages, text=None)]
    assert leaks(exam, planted)
    assert len(set(taught)) > 1000


@pytest.mark.parametrize("family", [name for name in CHAT if name != "one_word"])
@pytest.mark.parametrize("held_out", [False, True])
def test_family_draws_from_the_requested_side(family, held_out):
    rng = Random(family)
    for _ in range(500):
        turn = CHAT[family](rng, held_out)
        key = turn.key.rsplit(" of ", 1)[-1] if SPLIT_OF.get(family) == "subject" else turn.key
        assert is_held_out(SPLIT_OF.get(family, family), key) == held_out or not is_split(family, key, held_out)


def is_split(family, key, held_out):
    """Returns whether the split applies to a key: real words are spelt in training whatever their hash."""
    return held_out or family not in ("spelling", "reversing") or key not in REAL


def test_documents_contain_no_held_out_name():
    """Checks the names of tools and subjects of notes, wherever they occur."""
    tools = [f"{verb}_{noun}" for verb in VERBS for noun in NOUNS]
    hidden = {name for name in tools if is_held_out("tool", name)}
    hidden |= {f"{s} is" for s in SUBJECTS if is_held_out("subject", s)}
    hidden |= {f"{s}, " for s in SUBJECTS if is_held_out("subject", s)}
    text = "\n".join(m.content for d in islice(training_documents(3), 4000) for m in d.messages or ())
    assert len(hidden) > 100
    assert [name for name in hidden if f"\n{name}" in text or f"the {name}" in text or f" {name} =" in text] == []


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.family)
def test_held_out_facts_are_taught_in_three_other_templates(table):
    taught = Counter(pair.fact_key for pair in table.pairs if not is_held_out(table.family, pair.key))
    held_out = [pair for pair in table.pairs if is_held_out(table.family, pair.key)]
    assert len(held_out) >= 80
    assert min(taught[pair.fact_key] for pair in held_out) >= 3


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.family)
def test_every_template_is_taught_with_many_facts(table):
    templates = Counter((p.relation.name, p.template) for p in table.pairs if not is_held_out(table.family, p.key))
    for pair in table.pairs:
        assert templates[pair.relation.name, pair.template] >= 0.6 * len(pair.relation.facts)
        assert len(pair.relation.templates) >= 8


def test_questions_of_a_table_are_distinct():
    for table in TABLES:
        questions = [pair.turn(table.family).question for pair in table.pairs]
        assert len(set(questions)) == len(questions)


def test_share_of_held_out_keys():
    share = sum(is_held_out("arithmetic", f"{a}+{b}") for a in range(100) for b in range(100)) / 10_000
    assert abs(share - HELD_OUT_SHARE) < 0.02


def test_pinned_keys_are_taught():
    assert not any(is_held_out(family, key) for family, key in ALWAYS_TAUGHT)
    first = [pair.key for pair in capitals.TABLE.pairs if pair.relation is capitals.CAPITAL and pair.template == 0]
    assert any(is_held_out("capitals", key) for key in first)

"""The table of verbs: what leads to them, and their examples."""

import shlex

import pytest

from firesteel.cli.group import load_verb
from firesteel.cli.verbs import HINTS, PANELS, VERBS, explain_unknown, list_children


@pytest.mark.parametrize(
    ("group", "word", "meant"),
    [
        ("", "serv", "`firesteel serve`"),
        ("", "generat", "`firesteel generate`"),
        ("", "matrix", "`firesteel lab matrix`"),
        ("", "decode", "`firesteel bench decode`"),
        ("lab", "comprae", "`firesteel lab compare`"),
        ("bench", "serve", "`firesteel serve`"),
        ("", "run", "`firesteel serve`"),
        ("", "ps", "/health"),
        ("", "ls", "`firesteel list`"),
        ("", "download", "`firesteel pull`"),
    ],
)
def test_unknown_word_leads_to_what_was_meant(group, word, meant):
    assert meant in explain_unknown(group, word)


def test_word_near_nothing_leads_to_the_help():
    assert explain_unknown("bench", "xyzzy") == "no verb 'bench xyzzy'; see `firesteel bench --help`"


def test_hints_are_for_words_that_are_no_verbs():
    assert not HINTS.keys() & {verb.name for verb in list_children("")}


@pytest.mark.parametrize("verb", VERBS.values(), ids=lambda verb: verb.name)
def test_example_of_every_verb_is_a_command_line_that_its_flags_accept(verb):
    arguments = shlex.split(verb.example)
    while verb.is_group:
        verb, arguments = VERBS[f"{verb.name} {arguments[0]}"], arguments[1:]
    command = load_verb(verb.name)
    with command.make_context(verb.name, arguments):
        pass


@pytest.mark.parametrize("verb", VERBS.values(), ids=lambda verb: verb.name)
def test_summary_fits_a_line_of_80_columns(verb):
    assert len(verb.summary) <= 52 and verb.panel in ("", *PANELS)

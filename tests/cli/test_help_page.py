"""Layout of help pages."""

from types import SimpleNamespace

import pytest

from firesteel.cli.help_page import LEFT, write_example, write_panel, write_paragraphs
from firesteel.cli.verbs import VERBS


class Page:
    """A formatter of a given width."""

    def __init__(self, width):
        self.width, self.text = width, ""

    def write(self, text):
        self.text += text


@pytest.mark.parametrize("width", [78, 118])
def test_lines_fit_the_width_and_texts_begin_in_one_column(width):
    page = Page(width)
    write_panel(
        page, "Options", [("--port N", "port " * 40), ("--a-name-that-is-longer-than-the-column N", "text")]
    )
    lines = page.text.splitlines()
    assert max(map(len, lines)) <= width and lines[1] == "Options:"
    assert {line.index(line.split()[0]) for line in lines[3:-2]} == {LEFT + 4}
    assert lines[-2] == "  --a-name-that-is-longer-than-the-column N" and lines[-1] == " " * (LEFT + 4) + "text"


def test_flags_are_not_cut_at_their_hyphens():
    page = Page(60)
    write_panel(page, "Options", [("--x", "one two three " + "--max-num-batched-tokens " * 3)])
    write_paragraphs(page, "--max-num-batched-tokens " * 5)
    assert page.text.count("--max-num-batched-tokens") == 8


def test_paragraphs_stay_apart_and_examples_stand_alone():
    page = Page(78)
    write_paragraphs(page, "One\nline.\n\nAnother.")
    write_example(page, "firesteel list")
    assert page.text == "\n  One line.\n\n  Another.\n\n  Example: firesteel list\n"


def plain(run, *arguments):
    return run(*arguments, "--help", COLUMNS="80", TERMINAL_WIDTH="80").stdout


def test_page_of_the_program_has_a_panel_per_purpose_with_an_example_each(run):
    page = plain(run)
    for panel in ("Run", "Check", "Measure", "Convert", "Lab"):
        part = page.split(f"\n{panel}:\n")[1].split(":\n")[0]
        assert "\n  Example: firesteel " in part, panel
    shown = [verb for verb in VERBS.values() if verb.panel]
    assert all(f"\n  {verb.name} " in page and verb.summary in page for verb in shown)
    assert max(map(len, page.splitlines())) <= 80


@pytest.mark.parametrize("name", ["serve", "bench decode", "roofline"])
def test_page_of_a_verb_fits_80_columns_and_has_its_example(run, name):
    page = plain(run, *name.split())
    assert f"\n  Example: {VERBS[name].example_line}\n" in page
    assert max(map(len, page.splitlines())) <= 80 and "<" not in page and "[default" not in page


def test_help_shows_what_is_used_first_and_help_all_the_rest(run):
    first, everything = plain(run, "serve"), run("serve", "--help-all").stdout
    assert "--port N" in first and "--help-all" in first and "further options" in first
    assert "--schema-timeout-s" not in first and "--tensor-parallel-size" not in first
    assert "--schema-timeout-s X" in everything and "--tensor-parallel-size" in everything
    assert "further options" not in everything
    assert "--help-all" not in plain(run, "pull")


def test_word_after_the_dashes_is_not_a_request_for_help(run, monkeypatch):
    monkeypatch.setattr("firesteel.cli.lab.run.make_spec", lambda settings: SimpleNamespace(**settings).gone)
    result = run("lab", "run", "--", "--help-all")
    assert isinstance(result.exception, AttributeError) and "Usage" not in result.output

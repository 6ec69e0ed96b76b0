"""Commands that the documentation shows: firesteel accepts all of them, and those that need nothing special run."""

import subprocess
import sys

import pytest
import typer

from firesteel.cli import app
from tests.docs.markdown import PAGES, ROOT, list_commands, list_inline_commands

SHOWN = [(page, words, needs) for page in PAGES for words, needs in list_commands(page)]
ROOT_COMMAND = typer.main.get_command(app)
NAMES = [f"{page.stem}-{'-'.join(words[:3])}" for page, words, _ in SHOWN]


@pytest.mark.parametrize(("page", "words", "needs"), SHOWN, ids=NAMES)
def test_command_is_accepted(page, words, needs):
    command, names = find_command(words)
    command.make_context(" ".join(names), words[len(names) :])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_the_text_name_verbs_and_flags_that_exist(page):
    """They may be mentions without arguments."""
    for words in list_inline_commands(page):
        command, names = find_command(words)
        known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
        own = words[: words.index("--")] if "--" in words else words
        flags = {word.partition("=")[0] for word in own[len(names) :] if word.startswith("--")}
        assert flags <= known, words


def find_command(words):
    """Returns the command that the first words name, and these words."""
    command, names = ROOT_COMMAND, []
    for word in words:
        if not hasattr(command, "commands"):
            break
        assert word in command.commands, f"there is no verb {' '.join([*names, word])}"
        names.append(word)
        command = command.commands[word]
    return command, names


def test_blocks_say_what_they_need():
    assert len(SHOWN) > 30
    assert {needs for _, _, needs in SHOWN} > {None}


@pytest.mark.slow
@pytest.mark.parametrize(("page", "words", "needs"), SHOWN, ids=NAMES)
def test_command_of_a_block_that_needs_nothing_runs(page, words, needs, tmp_path):
    if needs:
        pytest.skip(f"needs {needs}")
    command = [sys.executable, "-m", "firesteel", *words]
    ran = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=900, stdin=subprocess.DEVNULL
    )
    assert ran.returncode == 0, ran.stderr[-2000:]

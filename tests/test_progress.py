"""A bar if one is wanted, a call if a function is given, nothing otherwise."""

import sys

import pytest

from firesteel.progress import watched


class Terminal:
    """Replaces stderr."""

    encoding = "utf-8"

    def __init__(self, is_terminal):
        self.text = ""
        self.is_terminal = is_terminal

    def isatty(self):
        return self.is_terminal

    def write(self, text):
        self.text += text

    def flush(self):
        pass


@pytest.fixture
def shown(monkeypatch):
    """Returns what is on stderr after two prompts of three tokens each."""

    def show(progress, *, total=2, is_terminal=True):
        stderr = Terminal(is_terminal)
        monkeypatch.setattr(sys, "stderr", stderr)
        with watched(progress, total) as watch:
            for finished, tokens in ((0, 2), (1, 2), (1, 2)):
                watch(finished, tokens)
        return stderr.text

    return show


def test_terminal_shows_a_bar_of_several_prompts_unless_told_not_to(shown):
    text = shown(None)
    assert "2/2" in text and "tok/s" in text and " 0 tok/s" not in text.rsplit("prompts", 1)[-1]
    assert shown(False) == "" and shown(None, total=1) == "" and "tok/s" in shown(True, total=1)


def test_file_or_pipe_gets_a_bar_only_if_requested(shown):
    assert shown(None, is_terminal=False) == "" and "2/2" in shown(True, is_terminal=False)


def test_function_is_called_for_finished_prompts_and_no_bar_is_shown(shown):
    seen = []
    assert shown(lambda done, total: seen.append((done, total))) == ""
    assert seen == [(1, 2), (2, 2)]

"""The page of clients: its table lists all recipes, each of which has text to paste and says what was tested."""

import re

import pytest

from tests.server import recipes

TEXT = recipes.PAGE.read_text(encoding="utf-8")
TITLES = re.findall(r"^## (.+)$", TEXT, re.MULTILINE)


def test_table_lists_every_recipe_in_order():
    rows = re.findall(r"^\| \[(.+?)\]\(#(.+?)\)", TEXT, re.MULTILINE)
    assert rows == [(title, re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")) for title in TITLES]


@pytest.mark.parametrize("title", TITLES)
def test_recipe_says_whether_it_was_tested(title):
    if title != "Open WebUI":  # reaches the server from a container
        assert recipes.read_recipe(title, url="http://localhost:1", model="tiny")
    section = " ".join(TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0].split())
    assert re.search(r"Tested with \S+.* \d|The tests (do not )?run", section)

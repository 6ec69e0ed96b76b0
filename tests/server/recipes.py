"""Recipes of docs/clients.md, and the clients that they are for."""

import os
import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "clients.md"
ADDRESS, MODEL = "http://127.0.0.1:8000", "openai/gpt-oss-120b"
CLIENTS = Path(os.environ.get("PEER_CLIENTS") or ROOT / ".clients")


def read_recipe(title, *, url, model):
    """Returns the text of the first recipe under a title of the page, for another address and model."""
    section = PAGE.read_text(encoding="utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    text = re.search(r"```\w+\n(.*?)```", section, re.DOTALL)[1]
    assert ADDRESS in text and MODEL in text
    return text.replace(ADDRESS, url).replace(MODEL, model)


def find_client(*places):
    """Returns the path of the first client that is installed; skips the test if none is."""
    for place in places:
        if (CLIENTS / place).exists():
            return CLIENTS / place
    return pytest.skip(f"needs {places[0]}: `make clients` installs some clients, CONTRIBUTING.md names the others")


def find_node():
    return shutil.which("node") or pytest.skip("needs Node 20: no program node is installed")

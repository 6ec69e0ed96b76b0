"""Recipes of docs/clients.md: the text that users paste, with the address and the model of a test's server."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "clients.md"
ADDRESS, MODEL, KEY = "http://127.0.0.1:8000", "openai/gpt-oss-120b", "anything"


def read_recipe(title, language):
    """Returns the first code of a section."""
    page = PAGE.read_text(encoding="utf-8")
    section = re.search(rf"^## {re.escape(title)}$(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)[1]
    return re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)[1]


def fill_in(recipe, *, url, model, key=KEY):
    """Replaces the address, the model and the key; each must be there."""
    for old, new in ((ADDRESS, url), (MODEL, model), (KEY, key)):
        assert old in recipe, f"{old} is not in the recipe"
        recipe = recipe.replace(old, new)
    return recipe

"""Limits on the counts of a request: the page for operators names each of them."""

from pathlib import Path

import pytest

from firesteel.server.openai import limits

PAGE = Path(__file__).parents[3] / "docs" / "security.md"
LIMITS = {name: value for name, value in vars(limits).items() if name.startswith("MAX_")}
# limit -> how its row of the table begins
ROWS = {
    "MAX_VALUES": "values in a body",
    "MAX_TEXTS": "texts and names of fields",
    "MAX_CONTAINERS": "objects and lists",
    "MAX_UNKNOWN_FIELDS": "unknown fields",
    "MAX_MESSAGES": "`messages`",
    "MAX_TOOLS": "`tools`",
    "MAX_DEFINITION_CHARACTERS": "the grammar of a custom tool",
    "MAX_METADATA": "`metadata`",
    "MAX_LOGIT_BIAS": "`logit_bias`",
    "MAX_STOP_TOKEN_IDS": "`stop_token_ids`",
    "MAX_ALLOWED_TOKEN_IDS": "`allowed_token_ids`",
    "MAX_BAD_WORDS": "`bad_words`",
    "MAX_BAD_WORD_TOKENS": "`bad_words`",
    "MAX_CHOICES": "`choice`",
    "MAX_PROMPT_LOGPROBS": "logprobs of prompts",
    "MAX_PATTERN_CHARACTERS": "`regex`",
    "MAX_GRAMMAR_CHARACTERS": "`grammar`",
    "MAX_STOPS": "`stop`",
    "MAX_STOP_CHARACTERS": "`stop`",
    "MAX_SALT_CHARACTERS": "`cache_salt`",
    "MAX_TOKENS_TO_DECODE": "tokens to detokenize",
    "MAX_CHARACTERS_TO_ENCODE": "characters to tokenize",
}


def test_every_limit_has_a_row():
    assert set(ROWS) == set(LIMITS)


@pytest.mark.parametrize("name", ROWS)
def test_page_tells_the_limit(name):
    [row] = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {ROWS[name]}")]
    assert f"{LIMITS[name]:,}" in row.split("|")[2]

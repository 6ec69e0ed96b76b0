"""Names of models, and what is suggested for wrong ones."""

import pytest

from firesteel.errors import UserError
from firesteel.hub.names import find_repository, find_short_name, suggest


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("gpt-oss-7b", "gpt-oss-20b"),
        ("gpt_oss_20b", "gpt-oss-20b"),
        ("gpt-oss:120b", "gpt-oss-120b"),
        ("GPT-OSS-20B", "gpt-oss-20b"),
        ("openai/gpt-oss-20", "openai/gpt-oss-20b"),
        ("kindlin", "kindling"),
        ("unslth/gpt-oss-20b", "unsloth/gpt-oss-20b"),
        ("llama", ""),
        ("gpt-oss-20b", ""),
        ("", ""),
    ],
)
def test_near_name_is_suggested(name, near):
    assert suggest(name, ["unsloth/gpt-oss-20b"]) == near


def test_error_for_a_wrong_name_has_the_near_one():
    with pytest.raises(UserError, match=r"^gpt-oss is not a folder .*did you mean gpt-oss-20b\?$"):
        find_repository("gpt-oss")


@pytest.mark.parametrize("name", ["a/b/c", "../x/y", "~/x", "open ai/x", "a/", "/", "-a/b", "a/b\n"])
def test_what_cannot_be_a_repository_is_refused(name):
    with pytest.raises(UserError, match="is not a folder or a name like"):
        find_repository(name)


def test_short_name_means_the_published_repository_and_back():
    assert find_repository("gpt-oss-120b") == "openai/gpt-oss-120b"
    assert find_short_name("openai/gpt-oss-120b") == "gpt-oss-120b"
    assert find_short_name("unsloth/gpt-oss-20b") == "unsloth/gpt-oss-20b"

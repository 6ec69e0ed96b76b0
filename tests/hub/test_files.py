"""The choice of files: what firesteel needs of a repository, and nothing else."""

import pytest

from firesteel.errors import UserError
from firesteel.hub.files import choose_files

# All files of openai/gpt-oss-20b.
PUBLISHED = (
    ".gitattributes",
    "LICENSE",
    "README.md",
    "USAGE_POLICY",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "metal/model.bin",
    "model-00000-of-00002.safetensors",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
    "original/config.json",
    "original/dtypes.json",
    "original/model.safetensors",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
)


def test_of_the_published_repository_only_what_is_needed_is_chosen():
    assert choose_files(PUBLISHED, "openai/gpt-oss-20b") == [
        "config.json",
        "generation_config.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
        "tokenizer.json",
        "model.safetensors.index.json",
        "model-00000-of-00002.safetensors",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]


def test_weights_in_one_file_are_chosen_if_there_are_no_shards():
    names = ["config.json", "model.safetensors", "tokenizer.json"]
    assert choose_files(names, "a/b") == ["config.json", "tokenizer.json", "model.safetensors"]


def test_shards_are_chosen_rather_than_one_file_with_the_same_weights():
    names = [
        "config.json",
        "tokenizer.json",
        "model.safetensors",
        "model.safetensors.index.json",
        "m-00001-of-00001",
    ]
    names[-1] += ".safetensors"
    assert choose_files(names, "a/b")[-2:] == ["model.safetensors.index.json", "m-00001-of-00001.safetensors"]


@pytest.mark.parametrize(
    ("lacking", "words"),
    [
        ({"config.json"}, "has no config.json"),
        ({"tokenizer.json"}, "has no tokenizer.json"),
        ({"model.safetensors.index.json"}, "has neither model.safetensors nor"),
        ({name for name in PUBLISHED if name.startswith("model-")}, "has neither model.safetensors nor"),
    ],
)
def test_repository_without_a_needed_file_is_refused(lacking, words):
    with pytest.raises(UserError, match=rf"a/b {words}.*: check the name"):
        choose_files(set(PUBLISHED) - lacking, "a/b")

"""Lookup of a model by name: a folder, or a snapshot in a made-up Hugging Face cache."""

import re

import huggingface_hub.constants
import pytest

from firesteel.errors import UserError
from firesteel.hub import SHORT_NAMES, find_checkpoint

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache; huggingface_hub reads its location from the environment at import."""
    folder = tmp_path / "hub"
    folder.mkdir()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


def put(cache, repository):
    root = cache / f"models--{repository.replace('/', '--')}"
    snapshot = root / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(COMMIT)
    return snapshot


def test_folder_is_used_as_given(cache, tmp_path):
    assert find_checkpoint(str(tmp_path)) == tmp_path


def test_folder_comes_before_a_name_in_the_cache(cache, tmp_path):
    put(cache, "openai/gpt-oss-20b")
    (tmp_path / "openai" / "gpt-oss-20b").mkdir(parents=True)
    folder = find_checkpoint("openai/gpt-oss-20b")
    assert folder.resolve() == tmp_path / "openai" / "gpt-oss-20b"


@pytest.mark.parametrize("name", ["openai/gpt-oss-20b", "gpt-oss-20b"])
def test_name_resolves_to_the_snapshot_of_its_main_revision(cache, name):
    snapshot = put(cache, "openai/gpt-oss-20b")
    put(cache, "openai/gpt-oss-120b")
    folder = find_checkpoint(name)
    assert folder.resolve() == snapshot and (folder / "config.json").is_file()


@pytest.mark.parametrize("name", SHORT_NAMES)
def test_error_for_a_missing_model_says_how_to_download_it(cache, name):
    with pytest.raises(UserError) as caught:
        find_checkpoint(name)
    message = str(caught.value)
    assert f"openai/{name} is not in the local Hugging Face cache" in message
    assert f"`hf download openai/{name}`" in message


def test_download_that_never_finished_its_first_file_is_missing(cache):
    (cache / "models--openai--gpt-oss-20b" / "blobs").mkdir(parents=True)
    with pytest.raises(UserError, match="hf download openai/gpt-oss-20b"):
        find_checkpoint("gpt-oss-20b")


@pytest.mark.parametrize("name", ["gpt-oss-7b", "./gone", "/gone/model", "~/model", "a/b/c"])
def test_invalid_name_is_an_error_that_lists_the_short_names(cache, name):
    with pytest.raises(UserError, match=f"^{re.escape(name)} is not a folder or .*gpt-oss-120b, gpt-oss-20b"):
        find_checkpoint(name)


def test_name_hugging_face_does_not_allow_is_an_error(cache):
    with pytest.raises(UserError, match="open ai/x is not in the local"):
        find_checkpoint("open ai/x")


def test_error_for_an_empty_name_says_what_to_give(cache):
    """The empty name once meant the current folder, and the error was about its config.json."""
    with pytest.raises(UserError, match=r"the empty name is not a folder or a name .* kindling"):
        find_checkpoint("")


def test_kindling_is_the_folder_in_the_package():
    assert (find_checkpoint("kindling") / "model.safetensors").is_file()

"""Lookup of a model by name: a folder, or a snapshot in a made-up Hugging Face cache."""

import json
import re

import pytest

from firesteel.errors import UserError
from firesteel.hub import SHORT_NAMES, find_checkpoint

COMMIT = "0123456789abcdef0123456789abcdef01234567"


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


@pytest.mark.parametrize("name", [*SHORT_NAMES, *SHORT_NAMES.values()])
def test_error_for_a_missing_model_says_how_to_fetch_it(cache, name):
    with pytest.raises(UserError) as caught:
        find_checkpoint(name)
    short = name.removeprefix("openai/")
    assert f"openai/{short} is not in the local Hugging Face cache" in str(caught.value)
    assert f": fetch it with `firesteel pull {short}`, or give" in str(caught.value)


def test_download_that_never_finished_its_first_file_is_missing(cache):
    (cache / "models--openai--gpt-oss-20b" / "blobs").mkdir(parents=True)
    with pytest.raises(UserError, match="firesteel pull gpt-oss-20b"):
        find_checkpoint("gpt-oss-20b")


def test_error_for_another_revision_in_the_cache_names_it_and_its_folder(cache):
    """Such a snapshot may be what an interrupted pull left: only a finished one is named main."""
    snapshot = put(cache, "openai/gpt-oss-20b")
    (snapshot.parents[1] / "refs" / "main").unlink()
    with pytest.raises(UserError, match=f"only at {COMMIT[:7]}, .*`firesteel pull gpt-oss-20b` .*{snapshot}$"):
        find_checkpoint("gpt-oss-20b")


def test_snapshot_without_files_that_are_not_needed_is_found(cache):
    """huggingface_hub 2 knows which files a repository has, and calls a snapshot without original/ incomplete."""
    snapshot = put(cache, "openai/gpt-oss-20b")
    trees = snapshot.parents[1] / "trees"
    trees.mkdir()
    listed = {"original/model.safetensors": {"size": 1, "blob_id": "0" * 40}}
    (trees / f"{COMMIT}.json").write_text(json.dumps({"format_version": 1, "files": listed}))
    assert find_checkpoint("gpt-oss-20b") == snapshot


def test_error_for_a_misspelt_repository_has_the_near_one(cache):
    put(cache, "unsloth/gpt-oss-20b")
    with pytest.raises(
        UserError, match=r"did you mean unsloth/gpt-oss-20b\? If not, fetch it with `firesteel pull un"
    ):
        find_checkpoint("unsloht/gpt-oss-20b")


@pytest.mark.parametrize("name", ["gpt-oss-7b", "./gone", "/gone/model", "~/model", "a/b/c"])
def test_invalid_name_is_an_error_that_lists_the_short_names(cache, name):
    with pytest.raises(UserError, match=f"^{re.escape(name)} is not a folder or .*gpt-oss-120b, gpt-oss-20b"):
        find_checkpoint(name)


def test_name_hugging_face_does_not_allow_is_an_error(cache):
    with pytest.raises(UserError, match="open ai/x is not a folder or a name like"):
        find_checkpoint("open ai/x")


def test_error_for_an_empty_name_says_what_to_give(cache):
    """The empty name once meant the current folder, and the error was about its config.json."""
    with pytest.raises(UserError, match=r"the empty name is not a folder or a name .* kindling"):
        find_checkpoint("")


def test_kindling_is_the_folder_in_the_package():
    assert (find_checkpoint("kindling") / "model.safetensors").is_file()

"""Questions to the hub: what is asked, what is read from the answer, and what a refusal says."""

import re

import huggingface_hub.constants
import pytest

from firesteel.errors import UserError
from firesteel.hub.faults import Unreachable
from firesteel.hub.listing import list_remote
from tests.hub.conftest import REPOSITORY, SHARDS


def test_listing_has_the_needed_files_with_sizes_and_checksums(hub, stored):
    listing = list_remote(REPOSITORY, "main")
    assert listing.commit == stored.commit and listing.revision == "main"
    assert [file.name for file in listing.files] == [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "model.safetensors.index.json",
        *SHARDS,
    ]
    for file in listing.files:
        content, digest = stored.files[file.name], file.new_hash()
        digest.update(content)
        assert file.num_bytes == len(content) and file.digest == digest.hexdigest()
        assert file.is_large == file.name.endswith(("safetensors", "tokenizer.json"))


def test_revision_and_token_are_sent(hub, stored, monkeypatch):
    stored.revisions = ("main", "refs/pr/1")
    hub.token = "hf_secret"
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert list_remote(REPOSITORY, "refs/pr/1").commit == stored.commit
    assert hub.listed == [(f"api/models/{REPOSITORY}/revision/refs/pr/1", "Bearer hf_secret")]


def test_unknown_repository_is_an_error_with_a_near_name(hub):
    with pytest.raises(
        UserError, match=r"has no repository openai/gpt-oss-20, .*404.*did you mean openai/gpt-oss-20b\?"
    ):
        list_remote("openai/gpt-oss-20", "main")


def test_unknown_revision_is_an_error_that_says_where_to_look(hub):
    with pytest.raises(UserError, match=f"{REPOSITORY} has no revision v9: see {hub.url}/{REPOSITORY}/tree/main"):
        list_remote(REPOSITORY, "v9")


def test_private_repository_needs_a_token(hub):
    hub.token = "hf_secret"
    with pytest.raises(UserError, match=r"or it is private \(HTTP 401\).*set HF_TOKEN"):
        list_remote(REPOSITORY, "main")


def test_wrong_token_is_an_error_that_does_not_show_it(hub, monkeypatch):
    hub.token = "hf_secret"
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(UserError, match=r"refused the token \(HTTP 401\)") as caught:
        list_remote(REPOSITORY, "main")
    assert "hf_wrong" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "words", "is_temporary"),
    [
        (403, "refuses access to openai/gpt-oss-20b .*HF_TOKEN", False),
        (429, "limits the rate", True),
        (503, r"failed \(HTTP 503\): try again later", True),
    ],
)
def test_other_refusals_name_the_status_and_a_cure(hub, status, words, is_temporary):
    hub.listing_status = status
    with pytest.raises(UserError, match=words) as caught:
        list_remote(REPOSITORY, "main")
    assert isinstance(caught.value, Unreachable) == is_temporary


def test_no_network_is_an_error_that_names_proxy_and_mirror(hub, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(Unreachable, match=r"cannot reach http://127.0.0.1:1 \(.+\): .*HTTPS_PROXY.*HF_ENDPOINT"):
        list_remote(REPOSITORY, "main")


def test_offline_mode_is_an_error_that_names_its_variable(hub, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(Unreachable, match="HF_HUB_OFFLINE is set"):
        list_remote(REPOSITORY, "main")


@pytest.mark.parametrize("answer", [b"<html>log in to the network</html>", b"[]", b"{}", b'"hub"'])
def test_server_that_is_not_a_hub_is_an_error(hub, answer):
    hub.listing_body = answer
    with pytest.raises(UserError, match=f"{hub.url} does not answer as a hub does: check HF_ENDPOINT"):
        list_remote(REPOSITORY, "main")


@pytest.mark.parametrize("commit", ["", "../../x", "A" * 40, "a" * 39])
def test_commit_that_is_not_a_hash_is_refused(hub, stored, commit):
    """It would become the name of a folder."""
    stored.commit = commit
    with pytest.raises(UserError, match=f"names {re.escape(repr(commit))} as the commit"):
        list_remote(REPOSITORY, "main")


@pytest.mark.parametrize(
    "wrong",
    [
        {"lfs": {"sha256": "../x", "size": 5, "pointerSize": 1}},
        {"lfs": {"sha256": "a" * 64, "size": -1, "pointerSize": 1}},
        {"lfs": None, "blobId": None},
        {"lfs": None, "blobId": "a" * 64},
        {"lfs": None, "size": None},
    ],
)
def test_file_without_a_valid_checksum_and_size_is_refused(hub, stored, wrong):
    stored.misstated[SHARDS[0]] = wrong
    with pytest.raises(UserError, match=f"no valid checksum or size of {SHARDS[0]}"):
        list_remote(REPOSITORY, "main")


@pytest.mark.parametrize("revision", ["", "..", "../main", "a/../b", "a//b", "/a", "-x", "a b", "v1/"])
def test_revision_that_could_leave_the_cache_is_refused(hub, revision):
    with pytest.raises(UserError, match=f"--revision {re.escape(repr(revision))} is not the name"):
        list_remote(REPOSITORY, revision)
    assert not hub.listed

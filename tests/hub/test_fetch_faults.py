"""What goes wrong with the network, the server or the disk while files are fetched."""

import errno

import pytest

from firesteel.errors import UserError
from firesteel.hub import fetch as fetch_module
from firesteel.hub import find_checkpoint
from firesteel.hub.client import download
from firesteel.hub.fetch import write_ref
from firesteel.hub.listing import list_remote
from firesteel.hub.partial import PartialFile
from firesteel.hub.plan import plan_pull
from tests.hub.conftest import REPOSITORY, SHARDS
from tests.hub.pulled import CUT, check_content, partial_of, pull
from tests.hub.stand_in import PIECE


def test_broken_connection_is_resumed_at_once(hub, stored):
    hub.cuts[SHARDS[0]] = CUT
    check_content(pull(), stored)
    (_, sent), (first, _) = hub.fetched(SHARDS[0])
    assert first == sent > CUT - PIECE


def test_connection_that_was_reset_is_resumed_if_it_brought_something(hub, stored, monkeypatch):
    """huggingface_hub itself resumes some broken connections, but not reset ones."""

    def reset(listing, file, target, *, held_bytes=0):
        if file.name == SHARDS[0] and held_bytes < CUT:
            target.write(stored.files[file.name][held_bytes : held_bytes + CUT // 2])
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        download(listing, file, target, held_bytes=held_bytes)

    monkeypatch.setattr(fetch_module, "download", reset)
    check_content(pull(), stored)
    assert hub.fetched(SHARDS[0]) == [(CUT, 200_000 - CUT)]


def test_connection_that_stays_broken_is_an_error_and_keeps_what_came(hub, stored, monkeypatch):
    def break_off(listing, file, target, *, held_bytes=0):
        if file.name != SHARDS[0]:
            download(listing, file, target, held_bytes=held_bytes)
            return
        if held_bytes == 0:
            target.write(stored.files[file.name][:7])
        raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")

    monkeypatch.setattr(fetch_module, "download", break_off)
    with pytest.raises(UserError, match=r"cannot reach http.*Connection reset by peer.*what was fetched is kept"):
        pull()
    assert partial_of(SHARDS[0]).stat().st_size == 7


def test_server_that_ignores_ranges_sends_the_file_anew(hub, stored):
    partial = partial_of(SHARDS[0])
    partial.parent.mkdir(parents=True)
    partial.write_bytes(stored.files[SHARDS[0]][:CUT])
    hub.ignores_ranges = True
    reports = []
    check_content(pull(lambda done, total: reports.append((done, total))), stored)
    assert hub.fetched(SHARDS[0])[-1] == (0, 200_000) and reports[-1][0] == reports[-1][1]


def test_failing_server_is_asked_again(hub, stored):
    hub.failures[SHARDS[0]] = [503, 500]
    check_content(pull(), stored)


def test_server_that_fails_on_and_on_is_an_error(hub):
    hub.failures[SHARDS[0]] = [502] * 9
    with pytest.raises(UserError, match=r"failed \(HTTP 502\): try again later"):
        pull()


@pytest.mark.parametrize("name", [SHARDS[0], "generation_config.json"], ids=["sha256", "git"])
def test_wrong_checksum_is_an_error_after_two_downloads_and_the_file_is_removed(hub, stored, name):
    content = stored.files[name]
    stored.altered[name] = bytes([content[0] ^ 1]) + content[1:]
    with pytest.raises(
        UserError, match=rf"{name} from {hub.url} does not have the checksum [0-9a-f]+ that the hub"
    ):
        pull()
    item = next(item for item in plan_pull(list_remote(REPOSITORY, "main")).items if item.file.name == name)
    assert not item.is_fetched and not item.link.exists() and not item.partial.exists()
    assert [first for first, _ in hub.fetched(name)] == [0, 0]


def test_damaged_beginning_is_fetched_anew(hub, stored):
    partial = partial_of(SHARDS[0])
    partial.parent.mkdir(parents=True)
    partial.write_bytes(bytes(CUT))
    reports = []
    check_content(pull(lambda done, total: reports.append((done, total))), stored)
    assert [first for first, _ in hub.fetched(SHARDS[0])] == [CUT, 0] and reports[-1][0] == reports[-1][1]


@pytest.mark.parametrize("size", [200_001, 300_000])
def test_unfinished_file_that_is_too_long_is_fetched_anew(hub, stored, size):
    partial = partial_of(SHARDS[0])
    partial.parent.mkdir(parents=True)
    partial.write_bytes(bytes(size))
    reports = []
    check_content(pull(lambda done, total: reports.append((done, total))), stored)
    assert reports[-1][0] == reports[-1][1]


def test_more_bytes_than_listed_are_refused(hub, stored):
    stored.altered[SHARDS[0]] = stored.files[SHARDS[0]] + b"more"
    with pytest.raises(UserError, match=f"{SHARDS[0]} from .* does not have the checksum"):
        pull()
    assert not partial_of(SHARDS[0]).exists()


def test_full_disk_is_an_error_and_keeps_what_was_written(hub, stored, monkeypatch):
    write = PartialFile.write

    def write_until_full(partial, data):
        if partial.tell() + len(data) > CUT:
            raise OSError(errno.ENOSPC, "No space left on device", "blob")
        return write(partial, data)

    with monkeypatch.context() as patch:
        patch.setattr(PartialFile, "write", write_until_full)
        with pytest.raises(UserError, match=r"the disk of .*hub is full: free some space or set HF_HOME"):
            pull()
    held = partial_of(SHARDS[0]).stat().st_size
    assert CUT - PIECE <= held <= CUT
    check_content(pull(), stored)
    assert hub.fetched(SHARDS[0])[-1][0] == held


def test_cache_that_cannot_be_written_is_an_error(hub, cache):
    (cache / "models--openai--gpt-oss-20b").write_text("not a folder")
    with pytest.raises(UserError, match=r"cannot write .*snapshots.*: make .*hub writable, or set HF_HOME"):
        pull()


def test_complete_model_in_a_cache_that_cannot_be_written_is_left_alone(hub, monkeypatch):
    folder = pull()

    def refuse(*_, **__):
        raise PermissionError(errno.EROFS, "Read-only file system", "refs/main")

    monkeypatch.setattr("pathlib.Path.write_text", refuse)
    plan = plan_pull(list_remote(REPOSITORY, "main"))
    write_ref(plan)
    assert find_checkpoint("gpt-oss-20b") == folder
    (folder.parents[1] / "refs" / "main").unlink()
    with pytest.raises(UserError, match="cannot write refs/main: Read-only file system"):
        write_ref(plan)


def test_gated_repository_is_an_error_that_says_where_to_accept_its_terms(hub, stored):
    stored.is_gated = True
    with pytest.raises(UserError, match=f"is gated: accept its terms at {hub.url}/{REPOSITORY}, then set HF_TOKEN"):
        pull()


def test_disk_without_symbolic_links_gets_the_files_themselves(hub, stored, monkeypatch):
    def refuse(path, target):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("pathlib.Path.symlink_to", refuse)
    folder = pull()
    check_content(folder, stored)
    assert not any(path.is_symlink() for path in folder.iterdir())
    assert plan_pull(list_remote(REPOSITORY, "main")).is_complete

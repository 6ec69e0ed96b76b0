"""What a pull would fetch, and whether the disk has room for it."""

import collections

import pytest

from firesteel.errors import UserError
from firesteel.hub.listing import list_remote
from firesteel.hub.plan import check_disk, check_sizes, find_free_bytes, plan_pull
from tests.hub.conftest import REPOSITORY, SHARDS

Usage = collections.namedtuple("Usage", ["total", "used", "free"])


@pytest.fixture
def plan(hub):
    def make():
        return plan_pull(list_remote(REPOSITORY, "main"))

    return make


def item_of(plan, name):
    return next(item for item in plan.items if item.file.name == name)


def test_empty_cache_lacks_every_file(plan, stored):
    fresh = plan()
    assert fresh.held_bytes == 0 and not fresh.is_complete
    needed = [name for name in stored.files if "/" not in name and name != "README.md"]
    assert fresh.total_bytes == fresh.missing_bytes == sum(len(stored.files[name]) for name in needed)


def test_unfinished_and_finished_files_count_as_held(plan):
    first, second = (item_of(plan(), name) for name in SHARDS)
    first.blob.parent.mkdir(parents=True)
    first.partial.write_bytes(bytes(1000))
    second.blob.write_bytes(bytes(second.file.num_bytes))
    again = plan()
    assert again.held_bytes == 1000 + second.file.num_bytes and not again.is_complete
    assert item_of(again, SHARDS[1]).is_fetched and not item_of(again, SHARDS[1]).is_linked


def test_file_of_a_wrong_size_is_not_held(plan):
    shard = item_of(plan(), SHARDS[0])
    shard.blob.parent.mkdir(parents=True)
    shard.blob.write_bytes(bytes(5))
    assert plan().held_bytes == 0 and not item_of(plan(), SHARDS[0]).is_fetched


def test_too_little_space_is_an_error_that_says_how_much_is_lacking(plan, monkeypatch):
    fresh = plan()
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(0, 0, fresh.missing_bytes))
    check_disk(fresh)
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(0, 0, fresh.missing_bytes - 1))
    with pytest.raises(UserError, match=r"openai/gpt-oss-20b needs 0.00 GB more, .*: free 0.00 GB, or set HF_HOME"):
        check_disk(fresh)


def test_space_is_that_of_the_nearest_folder_if_the_cache_does_not_exist(cache, monkeypatch):
    asked = []
    monkeypatch.setattr("shutil.disk_usage", lambda path: asked.append(path) or Usage(0, 0, 7))
    cache.rmdir()
    assert find_free_bytes() == 7 and asked == [cache.parent]


def test_file_that_the_hub_does_not_send_over_http_is_refused_unless_it_is_there(plan, monkeypatch):
    monkeypatch.setattr("firesteel.hub.plan.MOST_HTTP_BYTES", 199_999)
    with pytest.raises(
        UserError, match=rf"{SHARDS[0]} of {REPOSITORY} has .*`hf download {REPOSITORY} {SHARDS[0]}`"
    ):
        check_sizes(plan())
    shard = item_of(plan(), SHARDS[0])
    shard.blob.parent.mkdir(parents=True)
    shard.blob.write_bytes(bytes(200_000))
    check_sizes(plan())

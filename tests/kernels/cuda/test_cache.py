"""The disk cache of compiled kernels: hits, damaged files, full disks and the choice of its folder."""

import errno
import logging
import os
import stat
from pathlib import Path

import pytest

from firesteel.errors import KernelError
from firesteel.kernels.cuda import cache as cuda_cache
from firesteel.kernels.cuda.binary import CudaBinary
from firesteel.kernels.cuda.cache import CubinCache, current_cache, find_folder, use_cache, why_unsafe

BINARY = CudaBinary(bytes(range(256)), ".visible .entry first()")


class Builds:
    def __init__(self):
        self.count = 0

    def __call__(self):
        self.count += 1
        return BINARY


@pytest.fixture
def build():
    return Builds()


def test_built_kernel_is_found_again_by_this_and_other_processes(tmp_path, build):
    for _ in range(3):
        assert CubinCache(tmp_path / "new" / "folder").get("key", build) == BINARY
    assert build.count == 1
    assert CubinCache(tmp_path / "new" / "folder").get("other", build) == BINARY
    assert build.count == 2


def test_others_may_not_write_into_the_folder(tmp_path, build):
    CubinCache(tmp_path / "cache").get("key", build)
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) & 0o077 == 0


@pytest.mark.parametrize("length", [0, 1, 31, 32, 40, 100, -1])
def test_a_truncated_file_is_built_again(tmp_path, build, length):
    cache = CubinCache(tmp_path)
    cache.get("key", build)
    whole = cache.path("key").read_bytes()
    cache.path("key").write_bytes(whole[:length])
    assert cache.get("key", build) == BINARY and build.count == 2
    assert cache.path("key").read_bytes() == whole


@pytest.mark.parametrize("at", [0, 33, 45, -1])
def test_a_changed_byte_is_noticed(tmp_path, build, at):
    cache = CubinCache(tmp_path)
    cache.get("key", build)
    content = bytearray(cache.path("key").read_bytes())
    content[at] ^= 1
    cache.path("key").write_bytes(content)
    assert cache.get("key", build) == BINARY and build.count == 2


def test_file_of_another_key_is_not_used(tmp_path, build):
    cache = CubinCache(tmp_path)
    cache.get("other", build)
    cache.path("other").rename(cache.path("key"))
    assert cache.get("key", build) == BINARY and build.count == 2


def test_a_process_that_dies_while_writing_leaves_no_file(tmp_path, build, monkeypatch):
    def die(*paths):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        CubinCache(tmp_path).get("key", build)
    assert list(tmp_path.iterdir()) == []


def test_full_disk_causes_one_warning_and_no_error(tmp_path, build, monkeypatch, caplog):
    def refuse(*paths):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", refuse)
    cache = CubinCache(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert cache.get("key", build) == cache.get("other", build) == BINARY
    (record,) = caplog.records
    assert f"not kept in {tmp_path} (No space left on device)" in record.getMessage()
    assert "\n" not in record.getMessage() and list(tmp_path.iterdir()) == []


def test_file_in_place_of_the_folder_causes_one_warning(tmp_path, build, caplog):
    (tmp_path / "file").touch()
    cache = CubinCache(tmp_path / "file")
    assert cache.get("key", build) == cache.get("key", build) == BINARY
    assert build.count == 2 and len(caplog.records) == 1


@pytest.fixture
def unset(monkeypatch):
    """Resets the module to the state of a process that has built nothing and was given no folder."""
    monkeypatch.setattr(cuda_cache, "_given", None)
    monkeypatch.setattr(cuda_cache, "_current", None)


@pytest.mark.usefixtures("unset")
def test_the_folder_is_the_one_given_or_that_of_the_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert current_cache().folder == tmp_path / "firesteel" / "kernels"
    use_cache(str(tmp_path / "given"))
    assert current_cache().folder == tmp_path / "given"
    kept = current_cache()
    use_cache(str(tmp_path / "given"))
    assert current_cache() is kept
    use_cache("")
    assert current_cache().folder == tmp_path / "firesteel" / "kernels"


@pytest.mark.usefixtures("unset")
def test_folder_of_the_environment_is_used_if_none_is_given(tmp_path, monkeypatch):
    monkeypatch.setenv("FIRESTEEL_KERNEL_CACHE_DIR", str(tmp_path / "by variable"))
    assert current_cache().folder == tmp_path / "by variable"


@pytest.fixture
def homeless(monkeypatch, unset):
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)


@pytest.mark.usefixtures("homeless")
@pytest.mark.parametrize("given", ["", "~/mine"])
def test_without_a_home_folder_nothing_is_kept_and_one_warning_is_given(build, caplog, given):
    use_cache(given)
    assert not caplog.records, "nothing was built yet"
    for key in ("key", "key", "other"):
        assert current_cache().get(key, build) == BINARY
    (record,) = caplog.records
    assert "are not kept, as there is no home folder" in record.getMessage() and "\n" not in record.getMessage()
    assert build.count == 3


@pytest.mark.usefixtures("homeless")
def test_without_a_home_folder_a_given_folder_is_used(tmp_path, build, caplog):
    use_cache(str(tmp_path))
    for _ in range(2):
        current_cache().get("key", build)
    assert build.count == 1 and not caplog.records


def test_kernels_have_a_folder_of_their_own_among_the_users_caches(monkeypatch):
    monkeypatch.setenv("HOME", "/home/one")
    assert find_folder("", Path("/caches")) == Path("/caches/firesteel/kernels")
    assert find_folder("mine", Path("/caches")) == find_folder("mine", None) == Path("mine")
    assert find_folder("~/mine", None) == Path("/home/one/mine")


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777, 0o1777, 0o720], ids=oct)
def test_folder_that_others_can_write_to_is_refused(tmp_path, build, mode):
    CubinCache(tmp_path / "cache").get("key", build)
    (tmp_path / "cache").chmod(mode)
    with pytest.raises(KernelError, match=r"cache can be written by other users.*chmod go-w .*--kernel-cache-dir"):
        CubinCache(tmp_path / "cache").get("key", build)
    (tmp_path / "cache").chmod(0o755)  # others may read
    assert CubinCache(tmp_path / "cache").get("key", build) == BINARY and build.count == 1


def test_file_that_others_can_write_to_is_refused(tmp_path, build):
    cache = CubinCache(tmp_path / "cache")
    cache.get("key", build)
    cache.path("key").chmod(0o666)
    with pytest.raises(KernelError, match=r"key\.cubin can be written by other users.*: remove it"):
        cache.get("key", build)


def test_files_of_root_and_of_this_user_are_taken_and_those_of_others_are_not(tmp_path):
    status = list(tmp_path.stat())
    for owner, taken in ((0, True), (os.geteuid(), True), (os.geteuid() + 4321, False)):
        status[stat.ST_UID], status[stat.ST_MODE] = owner, stat.S_IFDIR | 0o755
        assert why_unsafe(os.stat_result(status)) == ("" if taken else f"belongs to user {owner}")


def test_link_in_place_of_a_file_is_not_followed(tmp_path, build):
    cache = CubinCache(tmp_path / "cache")
    cache.get("other", build)
    cache.path("key").symlink_to(cache.path("other"))
    assert cache.get("key", build) == BINARY and build.count == 2

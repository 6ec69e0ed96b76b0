"""Reading of the Hugging Face cache."""

from firesteel.hub.cache import find_snapshot, list_repositories, list_snapshots

COMMITS = ("0" * 40, "1" * 40)


def put(cache, repository, commit, **refs):
    root = cache / f"models--{repository.replace('/', '--')}"
    snapshot = root / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for name, content in refs.items():
        path = root / "refs" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    return snapshot


def test_absent_cache_is_empty(cache):
    cache.rmdir()
    assert list_repositories() == [] and list_snapshots("a/b") == [] and find_snapshot("a/b") is None


def test_repositories_of_models_are_listed_by_name(cache):
    put(cache, "openai/gpt-oss-20b", COMMITS[0])
    put(cache, "a/b-c", COMMITS[0])
    (cache / "datasets--a--b").mkdir()
    (cache / "models--file").write_text("")
    assert list_repositories() == ["a/b-c", "openai/gpt-oss-20b"]


def test_snapshots_have_their_revisions(cache):
    old = put(cache, "a/b", COMMITS[0], v1=COMMITS[0])
    new = put(cache, "a/b", COMMITS[1], main=COMMITS[1], v2=f"{COMMITS[1]}\n")
    nested = cache / "models--a--b" / "refs" / "refs" / "pr" / "1"
    nested.parent.mkdir(parents=True)
    nested.write_text(COMMITS[0])
    assert [(snapshot.folder, snapshot.revisions) for snapshot in list_snapshots("a/b")] == [
        (old, ("refs/pr/1", "v1")),
        (new, ("main", "v2")),
    ]
    assert find_snapshot("a/b") == find_snapshot("a/b", "v2") == new
    assert find_snapshot("a/b", "refs/pr/1") == find_snapshot("a/b", COMMITS[0]) == old
    assert find_snapshot("a/b", "v3") is None


def test_damaged_ref_names_no_snapshot(cache):
    put(cache, "a/b", COMMITS[0], main="")
    assert find_snapshot("a/b") is None
    (cache / "models--a--b" / "refs" / "main").write_bytes(b"\xff\x00" * 200)
    assert find_snapshot("a/b") is None


def test_bytes_of_a_snapshot_are_those_of_the_files_that_it_links_to(cache):
    snapshot = put(cache, "a/b", COMMITS[0])
    (cache / "blob").write_bytes(bytes(100))
    (snapshot / "linked").symlink_to(cache / "blob")
    (snapshot / "gone").symlink_to(cache / "nothing")
    (snapshot / "folder").mkdir()
    (snapshot / "folder" / "plain").write_bytes(bytes(7))
    assert list_snapshots("a/b")[0].count_bytes() == 107

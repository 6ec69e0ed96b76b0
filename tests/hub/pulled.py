"""Pulls of the repository of the stand-in, and what they leave in the cache."""

from firesteel.hub.fetch import fetch
from firesteel.hub.listing import list_remote
from firesteel.hub.plan import plan_pull
from tests.hub.conftest import REPOSITORY

CUT = 100_000  # in the middle of the first shard, and of a piece


def pull(report=lambda done, total: None, revision="main"):
    return fetch(plan_pull(list_remote(REPOSITORY, revision)), report)


def partial_of(name):
    return next(item.partial for item in plan_pull(list_remote(REPOSITORY, "main")).items if item.file.name == name)


def names_under(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def check_content(folder, stored):
    names = names_under(folder)
    assert len(names) == 6
    assert all((folder / name).read_bytes() == stored.files[name] for name in names)

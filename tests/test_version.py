"""The version of an installed package, and of plain sources."""

from importlib import metadata

from firesteel import version


def test_installed_package_has_a_version():
    assert version.find_version() == metadata.version("firesteel")


def test_plain_sources_have_no_version(monkeypatch):
    def find(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(version, "version", find)
    assert version.find_version() == "not installed"

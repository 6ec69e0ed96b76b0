"""A version is found where the package is installed, and missed where it is not."""

from importlib import metadata

from firesteel import version


def test_an_installed_package_has_a_version():
    assert version.find_version() == metadata.version("firesteel")


def test_sources_alone_have_none(monkeypatch):
    def find(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(version, "version", find)
    assert version.find_version() == "not installed"

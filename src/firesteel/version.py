"""Which firesteel this is."""

from importlib.metadata import PackageNotFoundError, version

NOT_INSTALLED = "not installed"


def find_version() -> str:
    """Of the package; run from its sources alone it has none, which is no reason to lose what was measured."""
    try:
        return version("firesteel")
    except PackageNotFoundError:
        return NOT_INSTALLED

"""The version of firesteel."""

from importlib.metadata import PackageNotFoundError, version

NOT_INSTALLED = "not installed"


def find_version() -> str:
    """Returns the version of the installed package, or NOT_INSTALLED if firesteel runs from its sources."""
    try:
        return version("firesteel")
    except PackageNotFoundError:
        return NOT_INSTALLED

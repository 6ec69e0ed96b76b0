"""Packages that some verbs need and that may be missing: the verb names the package, all others work."""

from __future__ import annotations

from firesteel.errors import UserError

SERVING = ("httpx2", "llguidance", "msgspec", "prometheus_client", "starlette", "uvicorn")


def explain_missing(verb: str, error: ModuleNotFoundError) -> None:
    """Raises UserError if the missing module belongs to a package of `SERVING`."""
    package = (error.name or "").partition(".")[0]
    if package in SERVING:
        raise UserError(
            f"{verb} needs the package {package}, which is not installed: install firesteel with its dependencies "
            "(pip install -r requirements/runtime.lock, then -r requirements/torch.lock)"
        ) from error

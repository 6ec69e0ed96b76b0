"""Verbs whose packages may be missing: these report the missing package, all others work."""

from __future__ import annotations

import importlib

import typer

from firesteel.cli.app import app
from firesteel.errors import UserError

SERVING = ("httpx2", "llguidance", "msgspec", "prometheus_client", "starlette", "uvicorn")


def load_verb(name: str, *modules: str) -> None:
    """Registers the verbs of `modules`, or a verb `name` that reports the missing package."""
    try:
        for module in modules:
            importlib.import_module(f"firesteel.cli.{module}")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in SERVING:
            raise
        stand_in(name, package)


def stand_in(name: str, package: str) -> None:
    @app.command(
        name=name,
        help=f"needs {package}, which is not installed",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    def refuse(context: typer.Context) -> None:
        raise UserError(
            f"firesteel {name} needs the package {package}, which is not installed: install firesteel with its "
            "dependencies (pip install -r requirements/runtime.lock, then -r requirements/torch.lock)"
        )

"""The verb lab, a group: verify, stress, measure and compare engines; its verbs are in files beside it."""

from __future__ import annotations

import typer

from firesteel.cli.app import app

lab = typer.Typer(no_args_is_help=True, help="Verify, stress, measure and compare engines.")
app.add_typer(lab, name="lab")

"""The command line: verbs, flags made from the settings, and tables for the terminal."""

from firesteel.cli.app import app, main

__all__ = ["app", "main"]

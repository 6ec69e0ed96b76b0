"""Verbs about the machine at hand."""

"""The error of drafters that cannot be used."""

from __future__ import annotations

from firesteel.errors import UserError


class DrafterError(UserError):
    """A drafter's checkpoint that cannot be used with the target."""

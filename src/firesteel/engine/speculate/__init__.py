"""Drafts tokens that the next step verifies, as long as that saves time."""

"""Measures what verifying drafted tokens costs, and computes what drafts gain."""

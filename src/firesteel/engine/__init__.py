"""Turns prompts into tokens: batches, cache and sampling; knows tokens, not text."""

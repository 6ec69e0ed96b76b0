"""Handling of input that nobody vouches for: files, texts, and what libraries do when they meet it."""

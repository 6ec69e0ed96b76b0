"""Choices of an answer: how to sample them, and text from the engine's outputs."""

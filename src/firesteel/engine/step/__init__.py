"""Runs one step: builds its batch, replays a captured step or calls the model."""

"""Coherence of answers without a reference: fixed questions, how a server is asked them, and a judge of texts."""

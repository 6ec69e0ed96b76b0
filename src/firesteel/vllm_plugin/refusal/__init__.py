"""Refusals of the plugin: untested versions of vLLM, its options, broken installations; with reason and cure."""

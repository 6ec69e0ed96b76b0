"""Refusals of the plugin: untested versions of vLLM and broken installations, with the reason and the cure."""

"""The messages endpoints of Anthropic's API."""

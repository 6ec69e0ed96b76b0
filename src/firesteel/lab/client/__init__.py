"""The lab's HTTP client: API, load, wire format and prompts."""

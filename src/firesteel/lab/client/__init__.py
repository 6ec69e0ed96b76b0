"""The lab's HTTP clients: for answers, for load, and their prompts."""

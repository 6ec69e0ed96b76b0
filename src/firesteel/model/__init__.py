"""gpt-oss: its facts, its weights and its network; knows ops, not how they are computed."""
